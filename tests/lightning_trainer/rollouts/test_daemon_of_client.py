"""Which daemon a runner asks, and an attempt in another process records for: the one that the client was told."""

from collections.abc import Iterator
from pathlib import Path

import lightning_instrumentation as lt
import pytest

from lightning_trainer.rollouts.on_ray import told_endpoint

BOX = "http://gpu-box:8321"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch, tmp_path: Path) -> Iterator[None]:
    for name in ("LIGHTNING_ENDPOINT", "LIGHTNING_TOKEN", "LIGHTNING_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path))
    monkeypatch.setenv("LIGHTNING_ROUTE", "0")
    lt.shutdown(0)
    yield
    lt.shutdown(0)


def test_an_attempt_on_ray_records_for_the_endpoint_that_the_code_names(monkeypatch) -> None:
    assert told_endpoint() is None
    lt.init()
    assert told_endpoint() is None  # a node may have another way to the daemon
    lt.init(f"{BOX}/v1")
    assert told_endpoint() == BOX
    monkeypatch.setenv("LIGHTNING_ENDPOINT", BOX)
    assert told_endpoint() is None
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "nonsense")
    assert told_endpoint() == BOX
