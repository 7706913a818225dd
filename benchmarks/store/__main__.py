"""What a long history costs: start, idle CPU, every answer of the API, and the size, of a store of millions of spans.

    python -m benchmarks.store                    # 5,000,000 spans and 100,000 steps: about 12 GB of disk
    python -m benchmarks.store --spans 1000000 --steps 20000
    python -m benchmarks.store --quick            # a small one
    python -m benchmarks.store --json FILE        # figures, goals and verdicts, for machines

The store is filled by inserts of many rows at once, through its own codecs (``common/history.py``). Then a daemon
without a policy is started on it, and a process with everything that a policy's loop and routes ask the store
(``common/policy_process.py``), without engine and trainer. The exit status is 0 even if a goal is missed: the table
says so.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from benchmarks.common import history
from benchmarks.common.rows import Row, as_json, print_table
from benchmarks.store import answers, retention


def main() -> None:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="lightning-store-", dir=options.folder))
    rows: list[Row] = []
    try:
        made = history.make(folder / "state", spans=options.spans, steps=options.steps)
        rows += made.rows
        rows += answers.measure(folder, made, idle_s=2.0 if options.quick else 30.0)
        rows += retention.measure(folder, made, spans=2_000 if options.quick else 100_000)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print_table(f"\na store of {options.spans:,} spans and {options.steps:,} steps", rows)
    if options.json:
        options.json.write_text(json.dumps({"rows": as_json(rows)}, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=5_000_000)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="the same measurements of 20,000 spans and 300 steps")
    parser.add_argument(
        "--folder", type=Path, help="where the store is made; the system's temporary folder when absent"
    )
    parser.add_argument("--keep", action="store_true", help="leave the store where it is")
    parser.add_argument("--json", type=Path, help="write figures, goals and verdicts to this file")
    options = parser.parse_args()
    if options.quick:
        options.spans, options.steps = 20_000, 300
    return options


if __name__ == "__main__":
    main()
