"""Strangers and accidents: fuzzed bodies, slow and flooding clients, and faults over a real training run.

    python -m benchmarks.hostile                          # all of it: about two hours on two cores
    python -m benchmarks.hostile --quick                  # fuzz and storm in a minute; no chaos
    python -m benchmarks.hostile --only fuzz --bodies 50000 --seed 7
    python -m benchmarks.hostile --only chaos --faults 40 --seed 3    # several seeds add up
    python -m benchmarks.hostile --json figures.json      # figures, goals and verdicts, for machines

Everything random follows from the seed, so that a finding can be repeated. The exit status is 0 even if a goal is
missed: the table says so. The chaos fills a small file system of its own, which only root can mount; without root the
disk does not get full, and the table shows no such fault.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.rows import Row, among, as_json, print_table

SECTIONS = {
    "fuzz": "Fuzzed bodies, in process and over sockets",
    "storm": "Slow, half-open and flooding clients beside a good one",
    "storm-tls": "The same over TLS, with handshakes that do not end",
    "chaos": "Faults over daemon, engine, trainer, Ray, writers, disk and store",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    name: str
    bodies: int
    """Fuzzed in process."""
    over_sockets: int
    clients: int
    """Slow, half-open, and flooding ones, at once."""
    storm_s: float
    faults: int


FULL = Sizes("full", bodies=1_000_000, over_sockets=10_000, clients=500, storm_s=60.0, faults=200)
QUICK = Sizes("quick", bodies=6_000, over_sockets=300, clients=60, storm_s=3.0, faults=0)


def main() -> None:
    options = _options()
    sizes = QUICK if options.quick else FULL
    only = options.only or [section for section in SECTIONS if section != "chaos" or sizes.faults]
    rows: list[Row] = []
    for section in only:
        began_s = time.monotonic()
        print(f"{section} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix=f"lightning-bench-{section}-", ignore_cleanup_errors=True) as folder:
            found = _run(section, sizes, Path(folder), options)
        print_table(f"\n{SECTIONS[section]} ({sizes.name}, {time.monotonic() - began_s:.0f} s)", found)
        rows.extend(found)
    with_goal = [row for row in rows if row.goal]
    print(f"{sum(row.met is True for row in with_goal)} of {len(with_goal)} goals met")
    if options.json:
        options.json.write_text(json.dumps({"sizes": sizes.name, "rows": as_json(rows)}, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=among(SECTIONS), help=",".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="small sizes, and no chaos")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is chosen at random")
    parser.add_argument("--bodies", type=int, help="fuzzed in process; as the size says without")
    parser.add_argument("--faults", type=int, help="of the chaos; as the size says without")
    parser.add_argument("--faults-a-step", type=int, default=20, help="of the chaos: more make fewer, rougher steps")
    parser.add_argument("--between-s", type=float, default=5.0, help="mean pause between two faults of a step")
    parser.add_argument("--json", type=Path, help="write figures, goals and verdicts to this file")
    return parser.parse_args()


def _run(section: str, sizes: Sizes, folder: Path, options: argparse.Namespace) -> list[Row]:
    if section == "fuzz":
        from benchmarks.hostile.fuzz import run as fuzz

        return fuzz(folder, options.bodies or sizes.bodies, sizes.over_sockets, options.seed)
    if section != "chaos":
        from benchmarks.hostile.storm import run as storm

        return storm(folder, sizes.clients, sizes.storm_s, over_tls=section == "storm-tls")
    from benchmarks.hostile.chaos.run import run as chaos

    return chaos(
        folder,
        faults=options.faults or FULL.faults,
        faults_a_step=options.faults_a_step,
        between_s=options.between_s,
        seed=options.seed,
    )


if __name__ == "__main__":
    main()
