"""Redaction: forms of secrets that are found, texts that are marked without one, and the time for it.

    python -m benchmarks.redaction                # both sections
    python -m benchmarks.redaction --only speed   # one
    python -m benchmarks.redaction --quick        # smaller
    python -m benchmarks.redaction --json FILE    # figures, goals and verdicts, for machines

The exit status is 0 even where a goal is missed: the table says so.
"""

import argparse
import json
from pathlib import Path
from types import ModuleType

from benchmarks.common.rows import Row, among, as_json, print_table
from benchmarks.redaction import finding, speed

SECTIONS: dict[str, ModuleType] = {"finding": finding, "speed": speed}


def main() -> None:
    options = _options()
    rows: list[Row] = []
    for name in options.only:
        found = SECTIONS[name].run(options.quick)
        print_table(f"\n{SECTIONS[name].TITLE}", found)
        rows += found
    if options.json:
        options.json.write_text(json.dumps({"rows": as_json(rows)}, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=among(SECTIONS), default=list(SECTIONS), help=",".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="the same measurements, smaller")
    parser.add_argument("--json", type=Path, help="write figures, goals and verdicts to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
