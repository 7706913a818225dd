"""``benchmarks/algorithms``: estimators, losses and presets are within 1e-4 of implementations by others."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.algorithms.papers import PAPERS
from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.algorithms.presets import PRESETS
from lightning_trainer.config.policies.estimators import ESTIMATORS

ROOT = Path(__file__).parents[3]
PARTS = ROOT / "benchmarks" / "algorithms"
REFERENCE = ("papers", "estimators", "losses", "imitation", "value_schemes", "plain", "peer_process")
"""What the trainer is compared with."""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.algorithms", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)


@pytest.mark.parametrize("name", REFERENCE)
def test_what_is_compared_with_shares_no_code_with_the_project_or_verl(name):
    tree = ast.parse((PARTS / f"{name}.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    # The samples are what both are given.
    foreign = {module for module in imported if module.split(".")[0] in ("lightning_trainer", "verl")}
    assert foreign <= {"lightning_trainer.types"}
    own = {module.rpartition(".")[2] for module in imported if module.startswith("benchmarks.algorithms.")}
    assert own <= set(REFERENCE)


def test_every_preset_has_the_numbers_of_its_paper():
    assert set(PAPERS) == set(PRESETS)


@pytest.mark.slow
@pytest.mark.verl
def test_every_formula_is_what_is_trained(tmp_path):
    done = _run("--no-peers", "--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    names = {kind: {row["name"] for row in rows if row["kind"] == kind} for kind in ("estimator", "loss", "preset")}
    assert names["estimator"] >= set(ESTIMATORS)
    assert names["loss"] >= set(POLICY_LOSSES)
    assert names["preset"] == set(PRESETS)
    assert {row["compared_with"] for row in rows} == {"paper formula", "formula, no paper"}
    flat = [row["name"] for row in rows if row["gradient"] < 1e-3]
    assert flat == [], "a gradient of nothing shows nothing"


@pytest.mark.slow
@pytest.mark.verl
def test_what_other_libraries_have_is_compared_with_their_own_code(tmp_path):
    done = _run("--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    by_others = {(row["kind"], row["name"]) for row in rows if row["compared_with"].startswith(("trl ", "torchrl "))}
    assert by_others >= {("preset", name) for name in PRESETS if name != "reinforce_plus_plus"}
    assert by_others >= {("loss", name) for name in ("vanilla", "gspo", "sapo", "geo_mean")}
    assert by_others >= {("credit with a critic", name) for name in ("gae_turns", "gae_tokens", "gae_bilevel")}


@pytest.mark.torch
def test_a_row_that_there_is_not_is_refused_with_a_sentence():
    done = _run("--only", "gsop")
    assert done.returncode == 1
    assert "nothing is called gsop" in done.stderr
