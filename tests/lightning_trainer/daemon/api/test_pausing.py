"""Training rests while someone has paused it, over restarts as well; who rolls back meanwhile is heard."""

import asyncio
import time
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.api.pausing import pause, pausing_router, resume
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.training_loop import TrainingLoop
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.tables import pauses
from lightning_trainer.types import PolicyVersion, VersionState


class _StandIn:
    """A trainer and a publisher that do what they are asked at once."""

    refused_in_a_row = 0

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.published: list[int] = []

    async def restart(self) -> None: ...

    async def close(self) -> None: ...

    async def set_aside(self) -> None: ...

    async def publish(
        self, *, version: int, step: int, asked_for: bool = False, changed: str | None = None
    ) -> PolicyVersion:
        self.published.append(version)
        live = PolicyVersion("p", version, step, VersionState.LIVE, 0)
        await self._store.put_version(live)
        return live


class _Life:
    """One life of a loop over a store."""

    def __init__(self, store: SqliteStore, folder: Any) -> None:
        self.progress = Progress()
        stored = asyncio.Event()
        self.rollbacks = RollbackRequests(wake=stored)
        stand_in: Any = _StandIn(store)
        self.loop = TrainingLoop(
            LoopContext(
                policy=PolicyConfig(name="p", agents=("a",), model="random:tiny"),
                store=store,
                progress=self.progress,
                metrics=MetricsRecorder("p", store, folder=folder),
                rollbacks=self.rollbacks,
                stored=stored,
            ),
            trainer=stand_in,
            publisher=stand_in,
            checkpoints=CheckpointFolder(folder / "checkpoints", keep=1),
        )

    async def __aenter__(self) -> "_Life":
        self._task = asyncio.create_task(self.loop.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, phase: Phase) -> None:
        async with asyncio.timeout(10):
            while self.progress.phase is not phase:
                await asyncio.sleep(0.01)


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore(tmp_path / "lightning.sqlite") as opened:
        yield opened


async def test_training_rests_until_it_is_resumed(store, tmp_path):
    async with _Life(store, tmp_path) as life:
        await life.until(Phase.COLLECTING)
        assert "is paused" in await pause(store, life.rollbacks, "p", "looking at the data")
        await life.until(Phase.HELD)
        assert life.progress.detail.startswith("looking at the data")
        cpu = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - cpu < 0.3  # it waits, and does not ask again and again
        assert life.progress.phase is Phase.HELD
        assert "goes on" in await resume(store, life.rollbacks, "p")
        await life.until(Phase.COLLECTING)
        assert "was not paused" in await resume(store, life.rollbacks, "p")
        assert life.progress.phase is Phase.COLLECTING


async def test_a_pause_holds_over_a_restart(store, tmp_path):
    async with _Life(store, tmp_path) as life:
        await life.until(Phase.COLLECTING)
        await pause(store, life.rollbacks, "p", "over night")
        await life.until(Phase.HELD)
    async with _Life(store, tmp_path) as again:
        await again.until(Phase.HELD)
        assert again.progress.detail.startswith("over night")
        await resume(store, again.rollbacks, "p")
        await again.until(Phase.COLLECTING)
    assert await store.scan(lambda connection: pauses.reason_of(connection, "p")) is None


async def test_who_waits_for_a_step_is_not_sent_away_by_a_pause(store, tmp_path):
    async with _Life(store, tmp_path) as life:
        await life.until(Phase.COLLECTING)
        await pause(store, life.rollbacks, "p", "a moment")
        await life.until(Phase.HELD)
        began = time.monotonic()
        await life.progress.wait_for_step(1, timeout_s=0.3)
        assert time.monotonic() - began >= 0.29


async def test_a_refused_rollback_is_answered_while_training_is_paused(store, tmp_path):
    from lightning_trainer.errors import RollbackError

    async with _Life(store, tmp_path) as life:
        await life.until(Phase.COLLECTING)
        await pause(store, life.rollbacks, "p", "a moment")
        await life.until(Phase.HELD)
        async with asyncio.timeout(10):
            with pytest.raises(RollbackError, match="has no version 9"):
                await life.rollbacks.ask(9)
        assert life.progress.phase is Phase.HELD
        await resume(store, life.rollbacks, "p")
        await life.until(Phase.COLLECTING)


async def test_the_routes_answer_with_what_was_done(store):
    asked = RollbackRequests(wake=asyncio.Event())
    app = FastAPI()
    app.include_router(pausing_router(store, {"p": asked}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        paused = await client.post("/lightning/policies/p/pause", json={"reason": "later"})
        assert (paused.status_code, asked.paused) == (200, "later")
        resumed = await client.post("/lightning/policies/p/resume", json={})
        assert (resumed.json()["said"], asked.paused) == ("training of p goes on", None)
        assert (await client.post("/lightning/policies/q/pause", json={})).status_code == 404
        assert (await client.post("/lightning/policies/p/pause", json={"why": "x"})).status_code == 422
        assert (await client.post("/lightning/policies/p/pause", content=b"{}")).status_code == 415
