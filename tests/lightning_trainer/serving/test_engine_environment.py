"""Freed memory stays with the engine unless the user says otherwise, and nothing reconfigures it unseen."""

from pathlib import Path

import pytest

from lightning_trainer.serving.engine import engine_environment
from lightning_trainer.serving.settings import EngineSettings

THRESHOLDS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def environment():
    folder = Path("/nowhere")
    return engine_environment(folder / "site", EngineSettings(folder, ("p",), folder, folder))


@pytest.mark.parametrize("name", THRESHOLDS)
def test_freed_blocks_of_a_pass_are_kept_unless_the_user_sets_it(monkeypatch, name):
    for threshold in THRESHOLDS:
        monkeypatch.delenv(threshold, raising=False)
    assert int(environment()[name]) >= 32 * 2**20
    monkeypatch.setenv(name, "131072")
    assert environment()[name] == "131072"


def test_what_would_change_it_unseen_is_not_inherited(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert "VLLM_API_KEY" not in environment()
