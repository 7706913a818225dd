"""The command line of a benchmark made of sections: all or some, smaller if wanted, also as JSON for machines."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from benchmarks.common.rows import Row, among, as_json, print_table


def run_sections(description: str | None, sections: Mapping[str, ModuleType]) -> None:
    """Run what the command line asks for and print a table of each section.

    Args:
        sections: by the names that ``--only`` takes; each has ``TITLE`` and ``run(quick)``, which returns rows.
    """
    options = _options(description, sections)
    rows: list[Row] = []
    for name in options.only:
        found = sections[name].run(options.quick)
        print_table(f"\n{sections[name].TITLE}", found)
        rows += found
    if options.json:
        options.json.write_text(json.dumps({"rows": as_json(rows)}, indent=1) + "\n")


def _options(description: str | None, sections: Mapping[str, ModuleType]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=among(sections), default=list(sections), help=",".join(sections))
    parser.add_argument("--quick", action="store_true", help="the same measurements, smaller")
    parser.add_argument("--json", type=Path, help="write figures, goals and verdicts to this file")
    return parser.parse_args()
