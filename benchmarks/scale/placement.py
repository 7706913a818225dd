"""What a step costs more on a cluster: one trainer and batch on this machine's own Ray, and on a node of a cluster.

The cluster is a head without processors and one node, both on this machine, so the model, the batch, and the published
weights travel as between machines, through Ray's object store, but over no wire. The figures are wall time from a call
to its answer, the median of a few steps; the first step warms up.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common.processes import ROOT
from benchmarks.common.rows import Row

TITLE = "A step on a node of a cluster"

_TIMEOUT_S = 1200


def run(quick: bool = False) -> list[Row]:
    """``quick``: with the tiny model."""
    local, cluster = (_measured(where, quick) for where in ("local", "cluster"))
    rows = [Row("placement", f"{what}, over the local one's", cluster[what] / local[what], "x") for what in local]
    rows += [
        Row("placement", f"{what}: {where}", seconds, "s")
        for where, found in (("local", local), ("cluster", cluster))
        for what, seconds in found.items()
    ]
    return rows


def _measured(where: str, quick: bool) -> dict[str, float]:
    """Return the median seconds of each call."""
    model = "random:tiny" if quick else "embedded:smollm2-135m-instruct"
    with tempfile.TemporaryDirectory(prefix="lightning-placement-") as scratch:
        out = Path(scratch) / "seconds.json"
        command = [sys.executable, "-m", "benchmarks.scale.placed_step", where, model, str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if done.returncode:
            raise RuntimeError(f"a step could not be measured ({where}): {done.stderr[-2000:]}")
        return json.loads(out.read_text())
