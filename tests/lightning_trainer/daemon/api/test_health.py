"""What a supervisor asks: is it alive, and does everything of it work."""

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from lightning_trainer.daemon.api.health import health_router
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.errors import StoreError
from lightning_trainer.serving.supervisor import EngineState, EngineStatus
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.connection import Connection
from lightning_trainer.types import Span

_WRITABLE: Any = SimpleNamespace(write_failure=None)


def _watched(name: str, state: EngineState, error: str | None, phase: Phase, detail: str = "") -> Any:
    progress = Progress()
    progress.enter(phase, detail)
    engine = SimpleNamespace(status=EngineStatus(state, 1, {}, 0, 1.0, error))
    return SimpleNamespace(policy=SimpleNamespace(name=name), progress=progress, engine=engine)


async def _asked(path: str, *policies: Any, store: Any = _WRITABLE, stopping: bool = False) -> httpx.Response:
    app = FastAPI()
    app.include_router(health_router(policies, store, lambda: stopping))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
        return await client.get(path)


async def test_it_is_ready_when_every_engine_answers_and_every_loop_goes_on():
    answer = await _asked("/readyz", _watched("p", EngineState.READY, None, Phase.COLLECTING))
    assert answer.status_code == 200
    assert answer.json() == {"ready": True, "store": ["ready"], "policies": {"p": ["ready"]}}
    assert (await _asked("/readyz")).json() == {"ready": True, "store": ["ready"], "policies": {}}


@pytest.mark.parametrize(
    ("state", "error", "phase", "detail", "sentence"),
    [
        (EngineState.FAILED, "it was killed", Phase.COLLECTING, "", "the engine is failed: it was killed"),
        (EngineState.READY, None, Phase.WAITING, "disk full", "training is waiting: disk full"),
        (EngineState.READY, None, Phase.PAUSED, "", "training is paused"),
    ],
)
async def test_it_says_what_is_not_ready_and_goes_on_living(state, error, phase, detail, sentence):
    policies = _watched("a", EngineState.READY, None, Phase.TRAINING), _watched("b", state, error, phase, detail)
    answer = await _asked("/readyz", *policies)
    assert answer.status_code == 503
    assert answer.json()["policies"] == {"a": ["ready"], "b": [sentence]}
    assert (await _asked("/healthz", *policies)).status_code == 200


async def test_one_that_stops_takes_no_more_calls_and_says_so_to_a_balancer():
    policy = _watched("p", EngineState.READY, None, Phase.COLLECTING)
    answer = await _asked("/readyz", policy, stopping=True)
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "reason": "this daemon is stopping"})
    assert (await _asked("/healthz", policy, stopping=True)).status_code == 200


async def test_it_says_when_an_engine_that_was_given_up_is_tried_again():
    watched = _watched("p", EngineState.FAILED, "it was killed", Phase.COLLECTING)
    watched.engine.status = replace(watched.engine.status, retry_at=time.time() + 100)
    (sentence,) = (await _asked("/readyz", watched)).json()["policies"]["p"]
    assert re.fullmatch(r"the engine is failed: it was killed; it is started again in (99|100) s", sentence)


async def test_a_full_disk_is_said_with_policies_and_without_until_something_can_be_written_again(tmp_path):
    # Before: "ready", while every call was answered 503
    policies = (_watched("p", EngineState.READY, None, Phase.COLLECTING),)
    large = Span("1" * 32, "2" * 16, None, "chat", 1, 2, {"text": "x" * 100_000})
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        assert (await _asked("/readyz", *policies, store=store)).status_code == 200
        await store.write(_holds_no_more_pages)
        said = "the store could not commit (database or disk is full); nothing was written"
        with pytest.raises(StoreError, match=re.escape(said)):
            await store.append([large])
        for asked in ((), policies):
            answer = await _asked("/readyz", *asked, store=store)
            assert (answer.status_code, answer.json()["store"]) == (503, [f"no call or span is recorded: {said}"])
        await store.write(lambda connection: connection.execute("PRAGMA max_page_count=1000000").fetchone())
        assert (await _asked("/readyz", store=store)).status_code == 503, "nothing of a call was written yet"
        await store.append([large])
        assert (await _asked("/readyz", *policies, store=store)).status_code == 200


def _holds_no_more_pages(connection: Connection) -> None:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}").fetchone()
