"""Two daemons on one PostgreSQL, without engines: what is asked of either is done by the one that trains."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from lightning_instrumentation import semconv

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.store import StoreConfig
from lightning_trainer.daemon.api.pausing import pausing_router
from lightning_trainer.daemon.api.rollback import RollbackRequests, rollback_router
from lightning_trainer.daemon.api.store import store_router
from lightning_trainer.daemon.loop import forwarding, training_loop
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.training_loop import TrainingLoop
from lightning_trainer.daemon.loop.turn import Turn
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.errors import TrainingError
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.store.records import StepState
from lightning_trainer.types import PolicyVersion, StepReport, TrainingBatch, VersionState

_TURN_S = 2.0
_LOOK_S = 0.1
_SEVERAL_LOOKS_S = 0.6
_POLICY = PolicyConfig(
    name="p", agents=("solver",), model="random:tiny", group_size=2, groups_per_step=1, reward_wait_s=600
)


class _StandIn:
    """A trainer and a publisher that do what they are asked at once."""

    refused_in_a_row = 0

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.asked_for: list[int] = []
        self.broken_on: int | None = None
        self.goes_on = asyncio.Event()
        """Cleared: the publisher waits before it answers."""
        self.goes_on.set()

    async def restart(self) -> None: ...

    async def close(self) -> None: ...

    async def follow(self) -> None: ...

    async def set_aside(self) -> None: ...

    async def serve_kept(self, version: int) -> None: ...

    async def step(self, batch: TrainingBatch) -> StepReport:
        if batch.step == self.broken_on:
            raise TrainingError(f"step {batch.step} cannot be trained")
        return StepReport(batch.step, {}, {}, 1, 1, 1, {})

    async def publish(
        self, *, version: int, step: int, asked_for: bool = False, changed: str | None = None
    ) -> PolicyVersion:
        if asked_for:
            self.asked_for.append(version)
            await self.goes_on.wait()
        live = PolicyVersion("p", version, step, VersionState.LIVE, 0)
        await self._store.put_version(live)
        return live


class _Daemon:
    """A policy's loop and its turn, and the routes that people use."""

    def __init__(self, store: PostgresStore, name: str, folder: Path) -> None:
        self.store = store
        self.progress = Progress()
        stored = asyncio.Event()
        self.rollbacks = RollbackRequests(wake=stored)
        self.turn = Turn("p", store=store, holder=f"http://{name}:8400", rollbacks=self.rollbacks)
        self.stand_in = _StandIn(store)
        stand_in: Any = self.stand_in
        self.loop = TrainingLoop(
            LoopContext(
                policy=_POLICY,
                store=store,
                progress=self.progress,
                metrics=MetricsRecorder("p", store, folder=folder / name),
                rollbacks=self.rollbacks,
                stored=stored,
            ),
            trainer=stand_in,
            publisher=stand_in,
            checkpoints=CheckpointFolder(folder / "checkpoints", keep=1),
            turn=self.turn,
        )
        app = FastAPI()
        by_policy = {"p": self.rollbacks}
        for router in (rollback_router(by_policy), pausing_router(store, by_policy), store_router(store, by_policy)):
            app.include_router(router)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{name}:8400", timeout=None)
        self._tasks: list[asyncio.Task] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self.loop.run()), asyncio.create_task(self.turn.keep(_TURN_S))]

    async def stop(self, *, gives_up: bool = True) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if gives_up:
            await self.turn.give_up()

    async def until(self, phase: Phase) -> None:
        async with asyncio.timeout(20):
            while self.progress.phase is not phase:
                await asyncio.sleep(0.01)

    async def post(self, action: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        async with asyncio.timeout(30):
            answer = await self.http.post(f"/lightning/policies/p/{action}", json=body or {})
        return answer.status_code, answer.text

    async def live(self) -> int | None:
        version = await self.store.live_version("p")
        return version and version.version


@pytest.fixture(autouse=True)
def look_often(monkeypatch) -> None:
    monkeypatch.setattr(forwarding, "_LOOK_S", _LOOK_S)
    monkeypatch.setattr(training_loop, "_LOOK_AGAIN_S", _LOOK_S)


@pytest.fixture
async def daemons(postgres_url: str, tmp_path: Path) -> AsyncIterator[tuple[_Daemon, _Daemon]]:
    """The one that trains, with three steps behind it, and the one that follows."""
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for name in ("one", "other"):
            store = await stack.enter_async_context(PostgresStore(postgres_url, StoreConfig(turn_s=_TURN_S)))
            made.append(_Daemon(store, name, tmp_path))
        one, other = made
        for step in (1, 2, 3):
            await one.store.assign(TrainingBatch("p", step, ()), policy="p", step=step, attempt_ids=[], ledger=[])
            await one.store.finish_step("p", StepReport(step, {}, {}, 1, 1, 1, {}), StepState.TRAINED)
            await one.store.put_version(PolicyVersion("p", step, step, VersionState.LIVE, 0))
        for daemon, phase in ((one, Phase.COLLECTING), (other, Phase.FOLLOWING)):
            stack.push_async_callback(daemon.http.aclose)
            stack.push_async_callback(daemon.stop)
            daemon.start()
            await daemon.until(phase)
        yield one, other


async def test_a_rollback_and_a_promotion_reach_the_daemon_that_trains(daemons):
    one, other = daemons
    assert (await other.post("rollback", {"version": 1}))[0] == 200
    assert (await one.live(), one.stand_in.asked_for, other.stand_in.asked_for) == (1, [1], [])
    await one.store.put_version(PolicyVersion("p", 0, 0, VersionState.REFUSED, 0))
    assert (await other.post("promote", {"version": 0}))[0] == 200
    assert (await one.live(), one.stand_in.asked_for) == (0, [1, 0])
    assert [one.progress.phase, other.progress.phase] == [Phase.COLLECTING, Phase.FOLLOWING]


async def test_what_the_daemon_that_trains_refuses_is_refused_in_its_words(daemons):
    one, other = daemons
    status, said = await other.post("rollback", {"version": 9})
    assert (status, "policy 'p' has no version 9; it has 1 to 3" in said) == (409, True)
    one.stand_in.goes_on.clear()
    going = asyncio.create_task(other.post("rollback", {"version": 1}))
    async with asyncio.timeout(20):
        while one.stand_in.asked_for != [1]:
            await asyncio.sleep(0.01)
    status, said = await one.post("rollback", {"version": 2})
    assert (status, "a rollback to version 1 is under way; wait for it" in said) == (409, True)
    one.stand_in.goes_on.set()
    assert (await going)[0] == 200


@pytest.mark.long
async def test_a_daemon_that_takes_over_does_what_it_had_passed_on(daemons):
    one, other = daemons
    await one.stop(gives_up=False)  # it falls silent, with its turn
    assert (await other.post("rollback", {"version": 2}))[0] == 200
    assert (await other.live(), one.stand_in.asked_for, other.stand_in.asked_for) == (2, [], [2])
    await asyncio.sleep(_SEVERAL_LOOKS_S)
    assert other.stand_in.asked_for == [2], "once"


async def test_a_daemon_that_follows_has_every_row_once_its_version_is_published(daemons, tmp_path):
    one, _ = daemons
    rows = tmp_path / "other" / "metrics" / "p.jsonl"

    async def until(*steps: int) -> None:
        async with asyncio.timeout(20):
            while tuple(json.loads(line)["step"] for line in rows.read_text().splitlines()) != steps:
                await asyncio.sleep(0.05)

    await until(1, 2, 3)
    await one.store.assign(TrainingBatch("p", 4, ()), policy="p", step=4, attempt_ids=[], ledger=[])
    await one.store.finish_step("p", StepReport(4, {}, {}, 1, 1, 1, {}), StepState.TRAINED)
    await asyncio.sleep(_SEVERAL_LOOKS_S)
    await until(1, 2, 3)
    await one.store.put_version(PolicyVersion("p", 4, 4, VersionState.LIVE, 0, publish_s=2.5))
    await until(1, 2, 3, 4)
    assert json.loads(rows.read_text().splitlines()[-1])["seconds/publish"] == 2.5


@pytest.mark.long
async def test_nothing_is_done_that_nobody_waits_for_any_more(daemons):
    one, other = daemons
    await one.stop(gives_up=False)
    going = asyncio.create_task(other.post("rollback", {"version": 1}))
    await asyncio.sleep(_SEVERAL_LOOKS_S)
    assert not going.done()
    await other.stop()
    going.cancel()
    await asyncio.sleep(_TURN_S)
    one.start()
    await one.until(Phase.COLLECTING)
    await asyncio.sleep(_SEVERAL_LOOKS_S)
    assert (await one.live(), one.stand_in.asked_for) == (3, [])


async def test_a_pause_holds_whoever_was_asked_and_whoever_trains_next(daemons):
    one, other = daemons
    assert (await other.post("pause", {"reason": "from the other"}))[0] == 200
    await one.until(Phase.HELD)
    assert (await one.post("resume"))[0] == 200
    await one.until(Phase.COLLECTING)
    async with asyncio.timeout(10):
        while other.rollbacks.paused is not None:
            await asyncio.sleep(0.01)
    assert (await one.post("pause", {"reason": "just before it stops"}))[0] == 200
    collected = []
    other.loop.steps.next_attempts = lambda groups: collected.append(groups) or asyncio.sleep(1.0)  # pyright: ignore
    await one.stop()
    await other.until(Phase.HELD)
    assert collected == []


async def test_a_step_that_is_dropped_elsewhere_wakes_the_loop_that_rests_because_of_it(daemons):
    one, other = daemons
    await one.stop()
    await other.stop()
    one.stand_in.broken_on = 4
    await one.store.assign(TrainingBatch("p", 4, ()), policy="p", step=4, attempt_ids=[], ledger=[])
    one.start()
    await one.until(Phase.PAUSED)
    other.start()
    await other.until(Phase.FOLLOWING)
    dropped = await other.http.post("/lightning/drop", json={"name": "p@4", "kind": "step"})
    assert dropped.status_code == 200, dropped.text
    await one.until(Phase.COLLECTING)
    assert await one.live() == 3


@pytest.mark.parametrize("ending", ["reward", "drop"])
async def test_what_another_daemon_receives_ends_the_wait_for_a_reward(daemons, attempt_spans, reward_span, ending):
    one, other = daemons
    for number, attempt in enumerate("ab"):
        root, call = attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + 10 * number)
        call.attributes[semconv.POLICY] = "p"
        await other.store.append([root, call])
    await other.store.append([reward_span(1.0, attempt="a")])
    async with asyncio.timeout(60):
        while not one.progress.detail.endswith("waiting for rewards of 1 attempts"):
            await asyncio.sleep(0.01)
        if ending == "reward":
            await other.store.append([reward_span(0.0, attempt="b")])
        else:
            assert (await other.http.post("/lightning/drop", json={"name": "r-b"})).status_code == 200
        while 4 not in await one.store.step_states("p"):
            await asyncio.sleep(0.01)
