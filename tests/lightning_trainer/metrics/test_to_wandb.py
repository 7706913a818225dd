"""Weights & Biases: a clear sentence without the package; with it, a run on disk that a restart goes on in."""

import importlib.util
import sys
from pathlib import Path

import pytest

from lightning_trainer.config.metrics import WandbConfig
from lightning_trainer.errors import MissingExtraError
from lightning_trainer.metrics.exports import WeightsAndBiases
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.store.upkeep.checkpoints import set_metrics_aside

SETTINGS = WandbConfig(project="lightning", mode="offline")


def test_without_the_package_the_sentence_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"metrics\.wandb is set and wandb is not installed: pip install wandb"):
        WeightsAndBiases(SETTINGS, policy="p", state_dir=tmp_path)


installed = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is optional, not installed")


def log_step(folder: Path, step: int) -> None:
    sink = WeightsAndBiases(SETTINGS, policy="p", state_dir=folder)
    sink.write(StepMetrics("p", step, {"reward/mean": 0.5}), {"kl_blowup": "a sentence"})
    sink.close()


def run_ids(folder: Path) -> list[str]:
    runs = sorted((folder / "metrics" / "wandb").glob("offline-run-*"))
    return [run.name.split("-")[3] for run in runs]  # offline-run-TIME-ID


@pytest.mark.long
@installed
def test_an_offline_run_is_written_below_the_state_folder_and_gone_on_in(tmp_path):
    for step in (1, 2):
        log_step(tmp_path, step)
    ids = run_ids(tmp_path)
    assert len(ids) == 2
    assert len(set(ids)) == 1


@pytest.mark.long
@installed
def test_steps_that_count_from_one_again_are_a_run_of_their_own(tmp_path):
    """Weights & Biases ignores rows of steps that a run has already."""
    state, emptied, moved = tmp_path / "state", tmp_path / "emptied", tmp_path / "moved"
    log_step(state, 1)
    state.rename(emptied)
    log_step(state, 1)  # a new run at the same path, as in another container
    assert set(run_ids(state)).isdisjoint(run_ids(emptied))

    state.rename(moved)
    log_step(moved, 2)
    before = set(run_ids(moved))
    assert len(before) == 1
    set_metrics_aside(moved)  # by a restore, after which step 2 is trained again
    log_step(moved, 2)
    assert len(set(run_ids(moved)) - before) == 1
