"""Frameworks that have no adapter of ours, each tried in several ways, with a scripted engine whose log is the truth.

    make frameworks                                            # installs them first, each set in its own environment
    python -m benchmarks.frameworks --only agno_agent,litellm_call
    python -m benchmarks.frameworks --write docs/frameworks.md # and put the tables there

A cell is complete when every call that the engine answered is in the daemon's store exactly once, with the same token
ids, log-probabilities, and agent. For other instrumentations, a second table says whether the spans that they send are
the same with ours as without, and whether `lightning-trainer agents` counts each call once although both report it. The
exit status is 1 if a call is not complete and the terminal did not say so, a span is changed, or a call is not counted
once.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.common.rows import among
from benchmarks.frameworks import table
from benchmarks.frameworks.known import KNOWN
from benchmarks.frameworks.trying import Tried, tried


def main() -> int:
    names = {framework.name: framework.title for framework in KNOWN}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=among(names), default=list(names), help=", ".join(names))
    parser.add_argument("--write", type=Path, help="put the tables into this page")
    parser.add_argument("--here", action="store_true", help="Python programs run in this environment, not their own")
    parser.add_argument("--keep", type=Path, help="folder for the store and the programs' output")
    options = parser.parse_args()
    chosen = [framework for framework in KNOWN if framework.name in options.only]
    if options.here:
        chosen = [replace(one, venv=one.venv and Path(sys.prefix)) for one in chosen]
    done: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="lightning-frameworks-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for one in tried(chosen, folder.resolve()):
            done.append(one)
            print(*table.rows_of(one), sep="\n", flush=True)
            if options.write:
                table.write(options.write, done)
    return _concluded(done)


def _concluded(done: list[Tried]) -> int:
    """Print what is not as it should be; return the exit status."""
    bad = [one for one in done if not one.whole]
    for one in bad:
        print(f"not whole: {one.framework.title}", file=sys.stderr)
    absent = [one.framework.title for one in done if one.framework.version is None]
    if absent:
        print(f"not installed, so not tried: {', '.join(absent)}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
