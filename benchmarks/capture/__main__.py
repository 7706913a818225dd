"""Capture, measured: what it costs, what it loses, what it ingests, and whether every framework's calls are complete.

    python -m benchmarks.capture                      # everything, at the sizes that the goals are stated for
    python -m benchmarks.capture --quick              # the same in minutes, rougher
    python -m benchmarks.capture --only cost,matrix   # some sections
    python -m benchmarks.capture --only loss --cases burst,fork   # some cases of it
    python -m benchmarks.capture --only ingest --spans 500000      # a size of its own
    python -m benchmarks.capture --json figures.json  # figures, goals and verdicts, for machines

Peers run next to ours in the same run; they are installed into an environment of their own
(benchmarks/common/peers.txt). CPU-seconds and ratios are reported instead of times wherever that is possible: other
work on the machine disturbs them less. The exit status is 0 even if a goal is missed: the table says so. The full
ingest writes a million spans, about 8 GB, into the temporary folder (TMPDIR) and removes them.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from benchmarks.capture.sizes import FULL, QUICK, TINY, Sizes
from benchmarks.common.rows import Row, among, as_json, print_table

SECTIONS = {
    "cost": "CPU added to a model call",
    "loss": "Spans lost and doubled, and the most memory that a writer used",
    "ingest": "Ingest: OTLP over HTTP to the commit",
    "gateway": "Gateway, beside a direct connection to the same engine",
    "absent": "Daemon absent, hung or failing",
    "matrix": "Frameworks: calls made, captured, and right",
}


def main() -> None:
    options = _options()
    sizes: Sizes = TINY if options.tiny else QUICK if options.quick else FULL
    if options.spans:
        sizes = dataclasses.replace(sizes, ingest_spans=options.spans)
    rows: list[Row] = []
    for section in options.only:
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"lightning-bench-{section}-") as folder:
            found = _run(section, sizes, Path(folder), options)
        print_table(f"\n{SECTIONS[section]} ({sizes.name}, {time.monotonic() - began_s:.0f} s)", found)
        rows.extend(found)
    _summary(rows)
    if options.json:
        options.json.write_text(json.dumps({"sizes": sizes.name, "rows": as_json(rows)}, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=among(SECTIONS), default=list(SECTIONS), help=",".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--tiny", action="store_true", help="only whether it works; the figures mean nothing")
    parser.add_argument("--frameworks", help="of the matrix: names separated by commas; all of them without")
    parser.add_argument("--cases", help="of the losses: names separated by commas; all of them without")
    parser.add_argument("--spans", type=int, help="of the ingest: how many; as the size says without")
    parser.add_argument("--json", type=Path, help="write figures, goals and verdicts to this file")
    options = parser.parse_args()
    if options.spans is not None and options.spans < 1:
        parser.error(f"--spans {options.spans}: give the number of spans to send, 1 or more")
    return options


def _run(section: str, sizes: Sizes, folder: Path, options: argparse.Namespace) -> list[Row]:
    print(f"{section} ...", file=sys.stderr, flush=True)
    run = import_module(f"benchmarks.capture.{section}").run
    chosen = {"matrix": options.frameworks, "loss": options.cases}
    if chosen.get(section):
        return run(sizes, folder, [name.strip() for name in chosen[section].split(",")])
    return run(sizes, folder)


def _summary(rows: list[Row]) -> None:
    with_goal = [row for row in rows if row.goal]
    print_table("\nGoals", with_goal)
    met = sum(row.met is True for row in with_goal)
    print(f"{met} of {len(with_goal)} goals met")


if __name__ == "__main__":
    main()
