"""Sixteen LoRA policies of one model and one alone: memory of the trainer's process and CPU-seconds of a policy's step.

Each number of policies is trained by one thread in a process of its own, three steps each in turn. The most that one
pass over the batches of two policies could save is measured as well: one policy is given both batches, which share no
token, and its step is compared with two steps of one batch; a pass with two adapters could not be faster.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common.processes import ROOT
from benchmarks.common.rows import Row, at_most

TITLE = "Adapters of 16 policies on one base, against one"
_MODEL, _QUICK_MODEL = "embedded:smollm2-135m-instruct", "random:tiny"
_MANY = 16


def run(quick: bool) -> list[Row]:
    from lightning_trainer.models.resolve import resolve_model

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning-trainer" / "models"
    model_dir = resolve_model(_QUICK_MODEL if quick else _MODEL, cache)
    one, many = (_measure(count, 1, model_dir) for count in (1, _MANY))
    larger = _measure(1, 4, model_dir)
    memory = f"{one['peak_gib']:.2f} GiB with 1 and {many['peak_gib']:.2f} GiB with {_MANY} policies"
    pace = f"{one['step_s']:.2f} s with 1 and {many['step_s']:.2f} s with {_MANY}, {one['tokens']} trained tokens"
    rows = [
        at_most(
            "adapters", f"peak memory of {_MANY} over that of 1", many["peak_gib"] / one["peak_gib"], 2.0, "x", memory
        ),
        at_most(
            "adapters", f"a step of one of {_MANY} over that of 1 alone", many["step_s"] / one["step_s"], 1.1, "x", pace
        ),
    ]
    for found in (one, larger):
        saved = 1.0 - found["two_in_one_s"] / (2 * found["step_s"])
        note = f"{found['two_in_one_s']:.2f} s for both batches, {found['step_s']:.2f} s for one"
        what = f"CPU time that one pass for two policies could save, {found['tokens']:,} trained tokens each"
        rows.append(Row("adapters", what, saved, "", note=note))
    return rows


def _measure(count: int, groups: int, model_dir: Path) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        command = [sys.executable, "-m", "benchmarks.training.adapters_update", str(count), str(groups)]
        subprocess.run([*command, str(model_dir), str(out)], check=True, cwd=ROOT)
        return json.loads(out.read_text())
