"""Weights & Biases: a clear sentence without the package; with it, a run on disk that a restart goes on in."""

import importlib.util
import sys

import pytest

from lightning_trainer.config.metrics import WandbConfig
from lightning_trainer.errors import MissingExtraError
from lightning_trainer.metrics.exports import WeightsAndBiases
from lightning_trainer.metrics.row import StepMetrics

SETTINGS = WandbConfig(project="lightning", mode="offline")


def test_without_the_package_the_sentence_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"metrics\.wandb is set and wandb is not installed: pip install wandb"):
        WeightsAndBiases(SETTINGS, policy="p", state_dir=tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is optional and not installed")
def test_an_offline_run_is_written_below_the_state_folder_and_gone_on_in(tmp_path):
    for step in (1, 2):
        sink = WeightsAndBiases(SETTINGS, policy="p", state_dir=tmp_path)
        sink.write(StepMetrics("p", step, {"reward/mean": 0.5}), {"kl_blowup": "a sentence"})
        sink.close()
    runs = sorted((tmp_path / "metrics" / "wandb").glob("offline-run-*"))
    assert len(runs) == 2
    assert len({run.name.split("-")[3] for run in runs}) == 1  # offline-run-TIME-ID
