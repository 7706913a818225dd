"""Train examples and report what became of each: held-out tasks before and after, with interval, curve, and rollouts.

    python -m benchmarks.proof                             # all of them, one seed each
    python -m benchmarks.proof search code --seeds 0,1,2   # some, three seeds each
    python -m benchmarks.proof --write docs/proof.md       # and the page

Runs are kept in ``--out``, without checkpoints once they are done. A run that is done is not repeated; one that was
interrupted continues where it stopped. A run of an example that has changed since, or of another number of steps, is
put aside (``earlier/``) and made again. Outcomes are kept next to the page (``docs/proof/``), so that it collects runs
of several days and machines; those of an example that has changed since are left out.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import re
import shutil
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common.processes import ROOT
from benchmarks.proof.examples import EXAMPLES, digest_of
from benchmarks.proof.one_run import train
from benchmarks.proof.outcome import Outcome, outcome_of
from benchmarks.proof.page import page, row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help=f"of {', '.join(EXAMPLES)}; all when absent")
    parser.add_argument("--seeds", type=_numbers, default=[0], help="0,1,2")
    parser.add_argument("--steps", type=int, help="instead of each example's own number")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "proof")
    parser.add_argument("--write", type=Path, help="write the page to this file, and the outcomes next to it")
    parser.add_argument("--remark", default="", help="a sentence for the page: what else ran meanwhile, say")
    options = parser.parse_args()
    if unknown := [name for name in options.examples if name not in EXAMPLES]:
        parser.error(f"there is no example {unknown[0]!r}; name some of: {', '.join(EXAMPLES)}")
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the daemon of a run ends with it
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    failed = False
    for name in options.examples or EXAMPLES:
        for seed in options.seeds:
            try:
                print(row(_outcome(name, seed, options.steps, options.out)), flush=True)
            except (RuntimeError, OSError) as error:
                failed = True
                print(f"{name}, seed {seed}: {error}", file=sys.stderr, flush=True)
    if options.write:
        kept = _kept(options.out, options.write.with_suffix(""))
        options.write.write_text(page(kept, options.remark))
        print(f"written: {options.write}")
    sys.exit(failed)


def _outcome(name: str, seed: int, steps: int | None, out: Path) -> Outcome:
    """Return the outcome that exists, or train."""
    example, folder = EXAMPLES[name], out / f"{name}-seed-{seed}"
    begun = {"digest": digest_of(name), "steps": steps or example.steps}
    if folder.exists() and _begun(folder) != begun:
        _put_aside(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "begun.json").write_text(json.dumps(begun))
    path = folder / "outcome.json"
    if not path.exists():
        minutes = train(name, example, folder, seed=seed, steps=begun["steps"])
        made = datetime.now(UTC).date().isoformat()
        about = {"minutes": minutes, "machine": _machine(), "made": made, "digest": begun["digest"]}
        asyncio.run(outcome_of(folder, name, seed=seed, **about)).write(path)
        # Gigabytes that only an interrupted run needs: seven examples with three seeds fill a disk.
        shutil.rmtree(folder / "state" / "checkpoints", ignore_errors=True)
    return Outcome.read(path)


def _begun(folder: Path) -> dict[str, Any] | None:
    """Return the digest of an example's files and the number of steps that a run was begun with; None if unknown."""
    try:
        return json.loads((folder / "begun.json").read_text())
    except FileNotFoundError:
        if not (folder / "outcome.json").exists():
            return None
        outcome = Outcome.read(folder / "outcome.json")  # of a run from before begun.json was written
        return {"digest": outcome.digest, "steps": outcome.steps}


def _put_aside(folder: Path) -> None:
    earlier = folder.parent / "earlier"
    earlier.mkdir(exist_ok=True)
    names = (f"{folder.name}.{number}" for number in itertools.count(1))
    aside = folder.rename(next(earlier / name for name in names if not (earlier / name).exists()))
    print(f"put aside: {aside}, of other files of the example or other steps", file=sys.stderr, flush=True)


def _kept(out: Path, folder: Path) -> list[Outcome]:
    """Return the outcomes of all runs; those of earlier days come from ``folder``, where all of them are kept."""
    folder.mkdir(exist_ok=True)
    for path in out.glob("*/outcome.json"):
        shutil.copyfile(path, folder / f"{path.parent.name}.json")
    found = []
    for path in folder.glob("*.json"):
        outcome = Outcome.read(path)
        if outcome.example in EXAMPLES and outcome.digest == digest_of(outcome.example):
            found.append(outcome)
        else:
            print(f"left out: {path.name}, whose example has changed since", file=sys.stderr)
            path.unlink()
    places = {name: place for place, name in enumerate(EXAMPLES)}
    return sorted(found, key=lambda outcome: (places[outcome.example], outcome.seed))


def _machine() -> str:
    memory_gib = psutil.virtual_memory().total / 2**30
    try:
        model = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)[0]
    except (OSError, IndexError):
        model = platform.machine()
    return f"{os.cpu_count()} cores of {model.strip()}, {memory_gib:.0f} GiB"


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers; write it as 0,1,2") from None


if __name__ == "__main__":
    main()
