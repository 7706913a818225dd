"""What it costs to train tokens as they were sampled (grammars, top_p, penalties), and that a forced tool is learned.

    python -m benchmarks.sampling                 # both sections
    python -m benchmarks.sampling --only cost     # one
    python -m benchmarks.sampling --quick         # smaller; ``learning`` then takes ten minutes, not an hour
    python -m benchmarks.sampling --json FILE     # figures, goals and verdicts, for machines

The exit status is 0 even where a goal is missed: the table says so.
"""

from types import ModuleType

from benchmarks.common.command import run_sections
from benchmarks.sampling import cost, learning

SECTIONS: dict[str, ModuleType] = {"cost": cost, "learning": learning}

if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
