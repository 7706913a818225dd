"""From spans to samples, measured: speed, memory, and what sharing prefixes saves.

    python -m benchmarks.transitions                 # 1,000 to 100,000 spans
    python -m benchmarks.transitions --million       # and 1,000,000, which takes some gigabytes
    python -m benchmarks.transitions --only sharing  # some sections
    python -m benchmarks.transitions --json FILE     # figures, goals and verdicts, for machines

The workload is described in ``transitions/workloads.py``. The nearest peer's adapter (agentlightning) is measured next
to ours, in an environment of its own that is made on demand; if it cannot be installed, one sentence says so. The exit
status is 0 even if a goal is missed: the table says so.
"""

import argparse
import json
from pathlib import Path

from benchmarks.common.rows import Row, among, as_json, print_table
from benchmarks.transitions import peer, sharing, speed

SECTIONS = {
    "speed": "From spans to a batch",
    "sharing": "Tokens computed over unique tokens",
    "peer": "Beside the nearest peer's adapter: spans to training triplets",
}
_SIZES = (1_000, 10_000, 100_000)


def main() -> None:
    options = _options()
    sizes = (*_SIZES, 1_000_000) if options.million else tuple(size for size in _SIZES if size <= options.most)
    measure = {
        "speed": lambda: speed.run(sizes),
        "sharing": sharing.run,
        "peer": lambda: peer.run(sizes[:2]),
    }
    rows: list[Row] = []
    for section in options.only:
        found = measure[section]()
        print_table(f"\n{SECTIONS[section]}", found)
        rows += found
    if options.json:
        options.json.write_text(json.dumps({"rows": as_json(rows)}, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=among(SECTIONS), default=list(SECTIONS), help=",".join(SECTIONS))
    parser.add_argument("--most", type=int, default=_SIZES[-1], help="leave out larger numbers of spans")
    parser.add_argument("--million", action="store_true", help="also a million spans")
    parser.add_argument("--json", type=Path, help="write figures, goals and verdicts to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
