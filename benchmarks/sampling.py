"""What it costs to train tokens as they were sampled (grammars, top_p, penalties), and that a forced tool is learned.

    python benchmarks/sampling.py                 # both sections
    python benchmarks/sampling.py --only cost     # one
    python benchmarks/sampling.py --quick         # smaller; ``learning`` then takes ten minutes, not an hour
    python benchmarks/sampling.py --json FILE     # figures, goals and verdicts, for machines

The sections are described in ``sampling_parts``. The exit status is 0 even where a goal is missed: the table says so.
"""

import argparse
import json
from pathlib import Path
from types import ModuleType

from capture_parts.rows import Row, as_json, print_table
from capture_parts.sections import among
from sampling_parts import cost, learning

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
