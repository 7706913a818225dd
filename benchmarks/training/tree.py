"""Tree against per-sequence training: CPU-seconds of one update by both engines on the same samples.

Per-sequence is verl's own engine. Each engine runs in a process of its own, with one thread, so that CPU time and
memory are its own. The workloads are groups of eight attempts at one task that share a 240-token prompt, and the same
groups as trajectories of ten turns (35 sampled tokens and 20 of a tool's answer each), every turn a sample whose prompt
repeats what came before, as an agent's calls do. Computed tokens are compared with the unique ones of the whole batch;
they include what micro-batches repeat under their budget. Behavior log-probabilities are the model's own with noise, as
those of older weights would be; a gradient of zero ends the section.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common.processes import ROOT
from benchmarks.common.rows import Row, at_least, at_most

TITLE = "Tree against per-sequence training, CPU-seconds of an update"
WORKLOADS = {"groups": "groups of 8, 240 shared", "turns": "10-turn trajectories"}
_MODEL, _QUICK_MODEL = "embedded:smollm2-135m-instruct", "random:tiny"
_RELATIVE = 1e-4
"""Largest relative difference of the gradients: rounding of float32 over the sums of a 135M model."""


def run(quick: bool) -> list[Row]:
    from lightning_trainer.models.resolve import resolve_model

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning-trainer" / "models"
    model_dir = resolve_model(_QUICK_MODEL if quick else _MODEL, cache)
    rows: list[Row] = []
    for workload, name in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as folder:
            # The tree engine first: it writes the log-probabilities that both are given, at less cost than the other
            # would.
            tree, stock = (_measure(engine, workload, model_dir, quick, Path(folder)) for engine in ("tree", "stock"))
            rows += _rows(name, stock, tree, gradient_difference(Path(folder)))
    return rows


def _measure(engine: str, workload: str, model_dir: Path, quick: bool, folder: Path) -> dict:
    command = [sys.executable, "-m", "benchmarks.training.tree_update", engine, workload, str(model_dir)]
    command += [str(folder / engine), "2" if quick else "4"]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    run = json.loads((folder / engine / "run.json").read_text())
    if not run["grad_norm"] > 0.0:
        raise RuntimeError(
            f"the gradient of {WORKLOADS[workload]} is {run['grad_norm']} with the {engine} engine and "
            f"{run['clipped']:.0%} of the tokens clipped: an update that trains nothing shows nothing"
        )
    return run


def _rows(name: str, stock: dict, tree: dict, difference: float) -> list[Row]:
    note = (
        f"{stock['computed']:,} tokens of {stock['samples']} samples, {tree['computed']:,} computed, "
        f"{stock['cpu_s']:.1f} s against {tree['cpu_s']:.1f} s, peak {stock['peak_gib']:.1f} and "
        f"{tree['peak_gib']:.1f} GiB; gradient {tree['grad_norm']:.3g}, {tree['clipped']:.1%} of the tokens clipped"
    )
    return [
        at_least("tree", f"{name}: CPU time, per-sequence over tree", stock["cpu_s"] / tree["cpu_s"], 4.0, "x", note),
        at_most("tree", f"{name}: computed over unique", tree["computed"] / tree["unique"], 1.05, "x"),
        at_most("tree", f"{name}: gradients, difference over length", difference, _RELATIVE, ""),
        at_most("tree", f"{name}: losses, difference", abs(stock["loss"] - tree["loss"]), 1e-5, ""),
    ]


def gradient_difference(folder: Path) -> float:
    """Return |tree - stock| over |stock|, of the gradient as a whole."""
    from safetensors.torch import load_file

    stock, tree = (load_file(folder / engine / "gradients.safetensors") for engine in ("stock", "tree"))
    squared = sum((tree[name] - stock[name]).square().sum().item() for name in stock)
    return (squared / sum(gradient.square().sum().item() for gradient in stock.values())) ** 0.5
