"""What an adapter publisher does before it asks vLLM anything."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.serving.adapter import AdapterShape
from lightning_trainer.serving.host.weights import adapter_publisher
from lightning_trainer.serving.host.weights.adapter_publisher import AdapterPublisher
from lightning_trainer.serving.host.weights.adapters import Adapters, LoadedAdapter
from lightning_trainer.serving.host.weights.publisher import EngineUnproven
from lightning_trainer.serving.host.weights.served_model import ServedModel
from lightning_trainer.serving.host.weights.version_pinning import VERSION_HEADER
from lightning_trainer.serving.publication import Probe, Publication, Tolerance


class Engine:
    """One that only sleeps and wakes."""

    async def sleep(self, level: int, mode: str) -> None: ...

    async def wake_up(self) -> None: ...


@pytest.fixture
def publisher(tmp_path: Path) -> AdapterPublisher:
    model = ServedModel(("math",), (), {}, False, "float32", 100, 64, 8)
    engine = Engine()
    return AdapterPublisher(engine, Adapters(engine, None, tmp_path), model, tmp_path, None)


def publication(version: int, path: Path) -> Publication:
    shape = AdapterShape(4, 8, ("q_proj",))
    probe, tolerance = Probe(((1, 2),), ((-1.0,),)), Tolerance(1e-3, 1e-3)
    return Publication("math", version, str(path), "0" * 32, 1, "float32", probe, tolerance, shape)


async def asked(publisher: AdapterPublisher, version: int | None) -> tuple[str, Any]:
    """The name under which vLLM is asked, and who answers."""
    headers = [] if version is None else [(VERSION_HEADER.encode(), str(version).encode())]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"model": "math"}).encode()}

    async with publisher.pin({"headers": headers}, receive) as pinned:
        return json.loads((await pinned.receive())["body"])["model"], pinned.sampler


async def test_nothing_is_loaded_into_an_engine_that_sleeps(publisher, tmp_path):
    (tmp_path / "v1").write_bytes(b"weights")
    await publisher.sleep(1)
    for load in (publisher.publish, publisher.hold):
        report = await asyncio.wait_for(load(publication(1, tmp_path / "v1")), 5)
        assert (report.accepted, report.reason) == (False, "the engine sleeps; wake it first")
    await publisher.wake()


async def test_what_an_adapter_serves_after_a_sleep_is_proven_before_requests_come_in(publisher, tmp_path, monkeypatch):
    of = publication(3, tmp_path)
    request = object()
    policy = publisher._policies["math"]
    policy.live = LoadedAdapter(of, tmp_path, request)
    policy.history.accept(of, policy.history.judge(of, ((-1.0005,),)))
    scores = [((-1.0006,),), ((-1.5,),)]

    async def score(engine, token_ids, adapter):
        assert (token_ids, adapter) == (of.probe.token_ids, request)
        return scores.pop(0)

    monkeypatch.setattr(adapter_publisher, "score", score)
    await publisher.wake()
    assert len(scores) == 2, "it did not sleep"
    await publisher.sleep(1)
    await publisher.wake()
    await publisher.sleep(1)
    with pytest.raises(EngineUnproven, match="math@v3 is not what it was after the engine slept"):
        await publisher.wake()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asked(publisher, None)


async def test_a_version_that_is_not_held_is_not_answered_by_another(publisher, tmp_path):
    live = LoadedAdapter(publication(3, tmp_path), tmp_path, type("Request", (), {"lora_name": "math@v3"})())
    publisher._policies["math"].live = live
    assert await asked(publisher, None) == ("math@v3", ("math", 3))
    assert await asked(publisher, 3) == ("math@v3", ("math", 3))
    assert await asked(publisher, 2) == ("math@v2", None), "vLLM has no model of this name and says so"
