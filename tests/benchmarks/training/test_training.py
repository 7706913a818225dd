"""``benchmarks/training``: its sections run as they stand and fill their rows.

The sections ``trl`` and ``learning`` train real models for an hour and are run by
hand; ``test_trl`` and ``test_learning`` have what is written down.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.training import tree
from lightning_trainer.models.resolve import resolve_model

pytestmark = pytest.mark.verl

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_an_update_is_measured_in_a_process_of_its_own(tmp_path):
    run = tree._measure("tree", "groups", resolve_model("random:tiny", tmp_path / "models"), True, tmp_path)
    assert run["samples"] == 16
    assert run["unique"] <= run["computed"] <= 1.05 * run["unique"]
    assert run["cpu_s"] > 0
    assert run["grad_norm"] > 1e-3
    assert 0.0 < run["clipped"] < 0.2


def test_an_update_that_trains_nothing_is_not_a_measurement(tmp_path, monkeypatch):
    (tmp_path / "tree").mkdir()
    nothing = {"grad_norm": 0.0, "clipped": 1.0}
    monkeypatch.setattr(tree.subprocess, "run", lambda *_, **__: None)
    (tmp_path / "tree" / "run.json").write_text(json.dumps(nothing))
    with pytest.raises(RuntimeError, match=r"the gradient of groups of 8, 240 shared is 0\.0 .* 100% of the tokens"):
        tree._measure("tree", "groups", tmp_path, True, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("section", ["tree", "asynchronous", "publish", "sampling"])
def test_a_section_fills_its_rows(tmp_path, section):
    command = [sys.executable, "-m", "benchmarks.training", "--quick", "--only", section]
    command += ["--json", str(tmp_path / "rows.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert rows
    assert all(row["figure"] is not None for row in rows)


def test_without_a_gpu_its_section_says_so(tmp_path):
    command = [sys.executable, "-m", "benchmarks.training", "--only", "gpu", "--json", str(tmp_path / "rows.json")]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(command, cwd=ROOT, check=True, timeout=200, env=hidden)
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert row["figure"] is None
    assert row["note"] == "there is no GPU here"


@pytest.mark.gpu
def test_on_a_gpu_it_fills_its_rows(tmp_path):
    command = [sys.executable, "-m", "benchmarks.training", "--quick", "--only", "gpu"]
    subprocess.run([*command, "--json", str(tmp_path / "rows.json")], cwd=ROOT, check=True, timeout=600)
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == 5
    assert all(row["figure"] > 0 for row in rows)
