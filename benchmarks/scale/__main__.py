"""What more of everything costs: more spans and daemons, larger weights, another node, longer histories.

    python -m benchmarks.scale                    # every section: some 10 GB of disk
    python -m benchmarks.scale --only ingest      # some
    python -m benchmarks.scale --quick            # less of it, in minutes
    python -m benchmarks.scale --json FILE        # figures, for machines

No section has a goal: the figures serve to compare ways, machines, and versions with each other.
"""

from types import ModuleType

from benchmarks.common.command import run_sections
from benchmarks.scale import ingest, placement, store, weights

SECTIONS: dict[str, ModuleType] = {"ingest": ingest, "weights": weights, "placement": placement, "store": store}

if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
