"""What it costs to train tokens as they were sampled: grammars, top_p, penalties.

    python -m benchmarks.sampling                 # in minutes
    python -m benchmarks.sampling --quick         # smaller
    python -m benchmarks.sampling --json FILE     # figures, goals and verdicts, for machines

The exit status is 0 even if a goal is missed: the table says so.
"""

from types import ModuleType

from benchmarks.common.command import run_sections
from benchmarks.sampling import cost

SECTIONS: dict[str, ModuleType] = {"cost": cost}

if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
