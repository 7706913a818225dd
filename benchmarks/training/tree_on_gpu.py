"""Tree against per-sequence training on a GPU: seconds of one update by both engines on the same samples.

Each engine runs in a process of its own. The models have four layers as wide as those of models of 1 to 8 billion
parameters, so that neither engine needs more than one card. The samples: two tasks, four attempts each, ten turns an
attempt, every turn a sample whose prompt repeats what came before. Per-sequence is verl's own engine, with flash
attention if that is installed, and otherwise with PyTorch's fused attention over padded sequences. The first update is
not counted: it compiles one kernel for each shape class.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common.processes import ROOT
from benchmarks.common.rows import Row, at_least, at_most
from benchmarks.training.tree import gradient_difference
from benchmarks.training.wide_layers import LAYERS, SIZES, whose
from lightning_trainer.config.hardware import visible_gpus

TITLE = "Tree against per-sequence training on a GPU, seconds of an update"


def run(quick: bool) -> list[Row]:
    if not visible_gpus():
        return [Row("gpu", "an update by both engines", None, note="there is no GPU here")]
    rows: list[Row] = []
    for size in SIZES[:1] if quick else SIZES:
        with tempfile.TemporaryDirectory() as folder:
            tree, stock = (_measure(engine, size, quick, Path(folder)) for engine in ("tree", "stock"))
            rows += _rows(size, stock, tree, gradient_difference(Path(folder)))
    return rows


def _measure(engine: str, size: str, quick: bool, folder: Path) -> dict:
    command = [
        sys.executable,
        "-m",
        "benchmarks.training.tree_on_gpu_update",
        engine,
        size,
        str(folder),
        "1" if quick else "2",
    ]
    subprocess.run(command, check=True, cwd=ROOT)
    run = json.loads((folder / engine / "run.json").read_text())
    if not run["grad_norm"] > 0.0:
        raise RuntimeError(f"the {engine} engine's gradient is {run['grad_norm']}: an update that trains nothing")
    return run


def _rows(size: str, stock: dict, tree: dict, difference: float) -> list[Row]:
    name = f"{LAYERS} layers of {whose(size)}"
    note = (
        f"{stock['samples']} samples of {stock['computed']:,} tokens, {tree['computed']:,} computed; "
        f"{stock['seconds']:.2f} s ({stock['attention']}) against {tree['seconds']:.2f} s; peak "
        f"{stock['peak_gib']:.1f} and {tree['peak_gib']:.1f} GiB; first update {stock['first_s']:.0f} and "
        f"{tree['first_s']:.0f} s; {tree['gpu']}, torch {tree['torch']}"
    )
    rates = stock["computed"] / stock["seconds"], tree["computed"] / tree["seconds"]
    return [
        at_least("gpu", f"{name}: time, per-sequence over tree", stock["seconds"] / tree["seconds"], 2.0, "x", note),
        Row("gpu", f"{name}: computed tokens a second, per-sequence", rates[0], "tokens/s"),
        Row("gpu", f"{name}: computed tokens a second, tree", rates[1], "tokens/s"),
        at_most("gpu", f"{name}: gradients, difference over length", difference, 0.05, "", "rounding of bfloat16"),
        at_most("gpu", f"{name}: losses, difference", abs(stock["loss"] - tree["loss"]), 1e-2, ""),
    ]
