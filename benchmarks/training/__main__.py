"""What training costs, compared with the plain way of doing the same.

    python -m benchmarks.training                 # every section
    python -m benchmarks.training --only tree     # some
    python -m benchmarks.training --quick         # small models and few steps, in minutes
    python -m benchmarks.training --json FILE     # figures, goals and verdicts, for machines

The exit status is 0 even if a goal is missed: the table says so.
"""

from types import ModuleType

from benchmarks.common.command import run_sections
from benchmarks.training import adapters, asynchronous, learning, publish, sampling, tree, tree_on_gpu, trl

SECTIONS: dict[str, ModuleType] = {
    "tree": tree,
    "gpu": tree_on_gpu,
    "asynchronous": asynchronous,
    "publish": publish,
    "adapters": adapters,
    "learning": learning,
    "sampling": sampling,
    "trl": trl,
}

if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
