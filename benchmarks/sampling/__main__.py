"""What it costs to train tokens as they were sampled (grammars, top_p, penalties), and that a forced tool is learned.

    python -m benchmarks.sampling                 # both sections
    python -m benchmarks.sampling --only cost     # one
    python -m benchmarks.sampling --quick         # smaller; ``learning`` then takes ten minutes, not an hour
    python -m benchmarks.sampling --json FILE     # figures, goals and verdicts, for machines

The exit status is 0 even where a goal is missed: the table says so.
"""

import argparse
import json
from pathlib import Path
from types import ModuleType

from benchmarks.common.rows import Row, among, as_json, print_table
from benchmarks.sampling import cost, learning

SECTIONS: dict[str, ModuleType] = {"cost": cost, "learning": learning}


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
