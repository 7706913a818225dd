"""Environments: what the protocol costs a step, in process and behind a pipe, sixty-four at once, and attempts an hour.

    python -m benchmarks.environments                # all sections
    python -m benchmarks.environments --only steps   # one
    python -m benchmarks.environments --quick        # smaller
    python -m benchmarks.environments --json FILE    # figures, goals and verdicts, for machines

The exit status is 0 even if a goal is missed: the table says so.
"""

from types import ModuleType

from benchmarks.common.command import run_sections
from benchmarks.environments import kinds, many, steps

SECTIONS: dict[str, ModuleType] = {"steps": steps, "many": many, "kinds": kinds}

if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
