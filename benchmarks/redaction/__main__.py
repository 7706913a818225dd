"""Redaction: forms of secrets that are found, texts that are marked although they hold none, and the time it takes.

    python -m benchmarks.redaction                # both sections
    python -m benchmarks.redaction --only speed   # one
    python -m benchmarks.redaction --quick        # smaller
    python -m benchmarks.redaction --json FILE    # figures, goals and verdicts, for machines

The exit status is 0 even if a goal is missed: the table says so.
"""

from types import ModuleType

from benchmarks.common.command import run_sections
from benchmarks.redaction import finding, speed

SECTIONS: dict[str, ModuleType] = {"finding": finding, "speed": speed}

if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
