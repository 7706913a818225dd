"""``benchmarks/algorithms.py``: estimators, losses and presets are within 1e-4 of plain PyTorch, on real gradients."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_trainer.credit.estimators import ESTIMATORS
from lightning_trainer.training.algorithms.losses import POLICY_LOSSES
from lightning_trainer.training.algorithms.presets import PRESETS

pytestmark = pytest.mark.verl

ROOT = Path(__file__).parents[2]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/algorithms.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)


def test_every_formula_is_what_is_trained(tmp_path):
    done = _run("--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    names = {kind: {row["name"] for row in rows if row["kind"] == kind} for kind in ("estimator", "loss", "preset")}
    assert names["estimator"] >= set(ESTIMATORS)
    assert names["loss"] >= set(POLICY_LOSSES)
    assert names["preset"] == set(PRESETS)
    flat = [row["name"] for row in rows if row["gradient"] < 1e-3]
    assert flat == [], "a gradient of nothing shows nothing"


def test_a_row_that_there_is_not_is_refused_with_a_sentence():
    done = _run("--only", "gsop")
    assert done.returncode == 1
    assert "nothing is called gsop" in done.stderr
