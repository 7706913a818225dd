"""What the loop decides by itself; its work with a real trainer and engine is tested in tests/loop."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.store import StoreConfig
from lightning_trainer.daemon.api.pausing import pause
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop import training_loop
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.demonstrations import Demonstrations
from lightning_trainer.daemon.loop.training_loop import TrainingLoop
from lightning_trainer.daemon.loop.turn import Turn
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.errors import (
    CheckpointError,
    EngineError,
    PublicationError,
    RollbackError,
    SettingsChangedError,
    StoreError,
    TrainerDiedError,
    TrainingError,
    TurnLostError,
)
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.store.records import StepState
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.store import Store
from lightning_trainer.store.worklist import waiting
from lightning_trainer.store.worklist.drops import drop
from lightning_trainer.types import PolicyVersion, StepReport, TrainingBatch, VersionState


class RecordingTrainer:
    """Its weights are the steps that they are made of."""

    def __init__(self) -> None:
        self.weights: tuple[int, ...] = (0,)
        self.saved: dict[Path, tuple[int, ...]] = {}
        self.broken_on: int | None = None
        self.closed = False

    async def step(self, batch: TrainingBatch) -> StepReport:
        if batch.step == self.broken_on:
            raise TrainingError(f"step {batch.step} cannot be trained")
        assert batch.step > self.weights[-1]
        self.weights = (*self.weights, batch.step)
        return StepReport(batch.step, {}, {}, 1, 1, 1, {})

    async def load(self, directory: Path) -> int:
        self.weights = self.saved[directory]
        return self.weights[-1]

    async def save(self, directory: Path, step: int) -> None:
        directory.mkdir(parents=True)
        self.saved[directory] = self.weights

    async def restart(self) -> None:
        self.weights = (0,)
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class RecordingPublisher:
    refused_in_a_row = 0
    last_reason = None

    def __init__(self, store: Store, trainer: RecordingTrainer) -> None:
        self._store = store
        self._trainer = trainer
        self.published: list[tuple[int, ...]] = []
        self.served_kept: list[int] = []
        self.asked_for: list[int] = []
        self.refuses: int | None = None
        self.engine_is_there = asyncio.Event()
        self.engine_is_there.set()

    async def set_aside(self) -> Path | None:
        return None

    async def engine_ready(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self.engine_is_there.wait(), timeout_s)
        except TimeoutError:
            raise EngineError("the engine is restarting") from None

    async def publish(
        self, *, version: int, step: int, asked_for: bool = False, changed: str | None = None
    ) -> PolicyVersion:
        if asked_for:
            self.asked_for.append(version)
        if changed is not None:
            raise SettingsChangedError(f"version {version} cannot be made again: {changed}")
        if not self.engine_is_there.is_set():
            raise EngineError("the engine failed 6 times")
        self.published.append(self._trainer.weights)
        state = VersionState.REFUSED if version == self.refuses else VersionState.LIVE
        outcome = PolicyVersion(
            "p", version, step, state, 0, reason="the probe disagrees" if version == self.refuses else None
        )
        await self._store.put_version(outcome)
        return outcome

    async def follow(self) -> None:
        live = await self._store.live_version("p")
        if live is not None and live.version not in self.served_kept:
            self.served_kept.append(live.version)

    async def serve_kept(self, version: int) -> None:
        self.served_kept.append(version)


class Run:
    """A loop on a store, with a trainer and a publisher that say what they were asked."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        turn: Callable[[RollbackRequests], Turn] | None = None,
        **settings: Any,
    ) -> None:
        self.store = store
        self.progress = Progress()
        self.trainer = RecordingTrainer()
        self.publisher = RecordingPublisher(store, self.trainer)
        stored = asyncio.Event()
        self.rollbacks = RollbackRequests(wake=stored)
        self.checkpoints = CheckpointFolder(folder / "checkpoints", keep=2)
        trainer: Any = self.trainer
        publisher: Any = self.publisher
        self.loop = TrainingLoop(
            LoopContext(
                policy=PolicyConfig(name="p", agents=("a",), model="random:tiny", **settings),
                store=store,
                progress=self.progress,
                metrics=MetricsRecorder("p", store, folder=folder),
                rollbacks=self.rollbacks,
                stored=stored,
            ),
            trainer=trainer,
            publisher=publisher,
            checkpoints=self.checkpoints,
            turn=turn and turn(self.rollbacks),
        )

    async def until(self, *phases: Phase) -> None:
        async with asyncio.timeout(10):
            while self.progress.phase not in phases:
                await asyncio.sleep(0.01)

    async def record_steps(self, *steps: int) -> None:
        """Steps without samples, trained in an earlier life of the daemon."""
        for step in steps:
            await self.store.assign(TrainingBatch("p", step, ()), policy="p", step=step, attempt_ids=[], ledger=[])
            await self.store.finish_step("p", StepReport(step, {}, {}, 1, 1, 1, {}), StepState.TRAINED)
            await self.store.put_version(PolicyVersion("p", step, step, VersionState.LIVE, 0))


@pytest.fixture
async def make_run(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Run]]]:
    async with contextlib.AsyncExitStack() as stack:

        async def end(task: asyncio.Task) -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        store = await stack.enter_async_context(SqliteStore(tmp_path / "lightning.sqlite"))

        async def make(*recorded: int, checkpoints: tuple[int, ...] | None = None, **settings: Any) -> Run:
            run = Run(tmp_path, store, **settings)
            await run.record_steps(*recorded)
            for step in ((2,) if recorded else ()) if checkpoints is None else checkpoints:
                await run.trainer.save(run.checkpoints.path(step), step)
                run.trainer.saved[run.checkpoints.path(step)] = tuple(range(step + 1))
            stack.push_async_callback(end, asyncio.create_task(run.loop.run()))
            return run

        yield make


async def test_a_policy_that_is_not_trained_is_served_and_never_collects(make_run):
    run = await make_run(train=False)
    await run.until(Phase.SERVING)
    assert run.publisher.published == [(0,)]
    async with asyncio.timeout(10):
        await run.progress.wait_for_step(1, timeout_s=60)  # nobody waits for a step that will not come


async def test_what_was_recorded_is_repeated_from_the_checkpoint(make_run):
    run = await make_run(1, 2, 3, 4)
    await run.until(Phase.COLLECTING)
    assert run.trainer.weights == (0, 1, 2, 3, 4)


async def test_going_back_serves_what_is_kept_and_repeats_only_the_way_to_the_version(make_run):
    run = await make_run(1, 2, 3, 4)
    await run.until(Phase.COLLECTING)
    async with asyncio.timeout(10):
        await run.rollbacks.ask(3)
    assert run.publisher.served_kept == [3]
    assert run.publisher.published[-1] == (0, 1, 2, 3)
    live = await run.store.live_version("p")
    assert live is not None
    assert live.version == 3


async def test_going_back_ends_the_warnings_about_what_it_took_back(make_run):
    run = await make_run(1, 2, 3)
    await run.until(Phase.COLLECTING)
    metrics = run.loop._metrics
    metrics.rows[-1] = StepMetrics("p", 3, {"actor/update_skipped": 1.0, "optimizer/updates": 1.0})
    await metrics.look_back()
    assert "update_skipped" in metrics.warnings
    async with asyncio.timeout(10):
        await run.rollbacks.ask(2)
    assert metrics.warnings == {}


async def test_a_rollback_of_a_daemon_that_was_stopped_is_asked_for_until_a_step_follows(make_run, tmp_path):
    run = await make_run(1, 2, 3)
    await run.until(Phase.COLLECTING)
    assert run.publisher.asked_for == []
    await run.store.put_rollback("p", 2, at_ns=1)
    again = Run(tmp_path, run.store)
    again.trainer.saved.update(run.trainer.saved)
    await again.loop._weights.recover(restart=False)
    assert again.publisher.asked_for == [2]
    await again.record_steps(4)
    await again.loop._weights.recover(restart=True)
    assert again.publisher.asked_for == [2]


async def retrained_with(run: Run, step: int, settings: dict[str, str]) -> None:
    report = StepReport(step, {}, {}, 1, 1, 1, {}, settings)
    await run.store.finish_step("p", report, StepState.TRAINED)


async def test_going_back_where_a_setting_has_changed_serves_what_is_kept_and_pauses(make_run):
    run = await make_run(1, 2, 3, 4, checkpoints=(2, 4))
    await run.until(Phase.COLLECTING)
    await retrained_with(run, 3, {"optimizer.lr": "0.001", "of an older release": "1"})
    sentence = "step 3 was trained with optimizer.lr = 0.001, and now it is 1e-05"
    async with asyncio.timeout(10):
        with pytest.raises(TrainingError, match=f"training is paused: version 3 cannot be made again: {sentence}"):
            await run.rollbacks.ask(3)
    assert run.publisher.served_kept == [3]
    assert run.publisher.published == [(0, 1, 2, 3, 4)]
    await run.until(Phase.PAUSED)
    with pytest.raises(TrainingError):  # of weights that are nobody's
        await run.loop.save()
    async with asyncio.timeout(10):
        await run.rollbacks.ask(4)  # its checkpoint is still there
    assert run.trainer.weights == (0, 1, 2, 3, 4)
    await run.until(Phase.COLLECTING)


async def test_a_setting_that_changed_before_the_checkpoint_changes_nothing_that_is_repeated(make_run, tmp_path):
    run = await make_run(1, 2, 3)
    await run.until(Phase.COLLECTING)
    await retrained_with(run, 2, {"optimizer.lr": "0.001"})
    await retrained_with(run, 3, {"optimizer.lr": "1e-05"})
    again = Run(tmp_path, run.store)
    again.trainer.saved.update(run.trainer.saved)
    await again.loop._weights.recover(restart=False)
    assert again.publisher.published == [(0, 1, 2, 3)]


async def test_going_back_beyond_every_checkpoint_starts_from_the_model(make_run):
    run = await make_run(1, 2, 3)
    await run.until(Phase.COLLECTING)
    async with asyncio.timeout(10):
        await run.rollbacks.ask(1)
    assert run.trainer.weights == (0, 1)


async def test_a_version_that_does_not_exist_is_refused_and_the_run_goes_on(make_run):
    run = await make_run(1, 2)
    await run.until(Phase.COLLECTING)
    async with asyncio.timeout(10):
        with pytest.raises(RollbackError, match="policy 'p' has no version 7; it has 1 to 2"):
            await run.rollbacks.ask(7)
        with pytest.raises(RollbackError, match=r"policy 'p' has no version 10+; it has 1 to 2"):
            await run.rollbacks.ask(10**30)  # no number of SQLite's
    assert run.trainer.weights == (0, 1, 2)
    assert run.progress.phase is Phase.COLLECTING


async def test_who_asks_to_go_back_hears_of_an_error_that_nobody_has_thought_of(make_run, monkeypatch):
    run = await make_run(1, 2)
    await run.until(Phase.COLLECTING)

    async def broken(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr(run.store, "put_rollback", broken)
    async with asyncio.timeout(10):
        with pytest.raises(RollbackError, match="a bug of the daemon's own: KeyError: 'a bug'"):
            await run.rollbacks.ask(1)
    assert run.trainer.weights == (0, 1, 2)
    assert run.progress.phase is Phase.COLLECTING


async def test_a_step_that_cannot_be_trained_pauses_until_somebody_goes_back_before_it(make_run):
    run = await make_run(1, 2, 3)
    run.trainer.broken_on = 3
    await run.until(Phase.PAUSED)
    async with asyncio.timeout(10):
        await run.rollbacks.ask(2)
    await run.until(Phase.COLLECTING)
    assert run.trainer.weights == (0, 1, 2)


async def test_a_step_that_cannot_be_trained_is_dropped_and_the_loop_goes_on_by_itself(make_run):
    run = await make_run(1, 2, 3)
    run.trainer.broken_on = 3
    await run.until(Phase.PAUSED)
    await run.store.write(lambda connection: connection.execute("UPDATE steps SET state = 'assigned' WHERE step = 3"))
    await run.store.write(lambda connection: drop(connection, "p@3", reason="the trainer cannot"))
    run.rollbacks.look_again()
    await run.until(Phase.COLLECTING)
    assert run.trainer.weights == (0, 1, 2)
    assert not run.rollbacks.changed


async def test_a_version_that_the_engine_refuses_is_not_said_to_be_served(make_run):
    run = await make_run(1, 2, 3)
    await run.until(Phase.COLLECTING)
    run.publisher.refuses = 2
    async with asyncio.timeout(10):
        with pytest.raises(PublicationError, match=r"p@v2 was refused.*the probe disagrees"):
            await run.rollbacks.ask(2)


async def refused(run: Run, version: int) -> None:
    await run.store.put_version(PolicyVersion("p", version, version, VersionState.REFUSED, 0, reason="it is worse"))


async def test_promoting_what_the_trainer_holds_publishes_it_and_repeats_nothing(make_run):
    run = await make_run(1, 2, 3)
    run.publisher.refuses = 3
    await run.until(Phase.COLLECTING)
    published = len(run.publisher.published)
    run.publisher.refuses = None
    async with asyncio.timeout(10):
        await run.rollbacks.ask(3, promote=True)
    assert run.publisher.published[published:] == [(0, 1, 2, 3)]
    assert await run.store.rollbacks("p") == []
    live = await run.store.live_version("p")
    assert live is not None
    assert live.version == 3
    await run.until(Phase.COLLECTING)


async def test_promoting_an_older_one_makes_it_again_and_trains_on_from_it(make_run):
    run = await make_run(1, 2, 3, 4)
    await refused(run, 3)
    await run.until(Phase.COLLECTING)
    async with asyncio.timeout(10):
        with pytest.raises(RollbackError, match="promote 3` serves it all the same"):
            await run.rollbacks.ask(3)
        await run.rollbacks.ask(3, promote=True)
    assert run.publisher.published[-1] == (0, 1, 2, 3)
    assert [one.version for one in await run.store.rollbacks("p")] == [3]


async def test_what_is_promoted_is_served_only_when_it_is_proven(make_run):
    run = await make_run(1, 2, 3)
    run.publisher.refuses = 3
    await run.until(Phase.COLLECTING)
    async with asyncio.timeout(10):
        with pytest.raises(PublicationError, match=r"p@v3 was refused.*the probe disagrees"):
            await run.rollbacks.ask(3, promote=True)
        with pytest.raises(RollbackError, match="p@v1 was served before; `lightning-trainer rollback 1`"):
            await run.rollbacks.ask(1, promote=True)
    assert (await run.store.version("p", 3)).state is VersionState.REFUSED


async def test_promoting_what_is_served_is_no_mistake(make_run):
    run = await make_run(1, 2)
    await run.until(Phase.COLLECTING)
    async with asyncio.timeout(10):
        await run.rollbacks.ask(2, promote=True)
    assert (await run.store.live_version("p")).version == 2


async def test_promoting_what_is_served_while_training_has_gone_on_from_it_goes_back_to_it(make_run):
    run = await make_run(1, 2, 3)
    await run.until(Phase.COLLECTING)
    await run.store.put_version(PolicyVersion("p", 2, 2, VersionState.LIVE, 0))
    async with asyncio.timeout(10):
        await run.rollbacks.ask(2, promote=True)
    assert run.publisher.published[-1] == run.trainer.weights == (0, 1, 2)
    assert [one.version for one in await run.store.rollbacks("p")] == [2]


async def test_weights_that_nobody_vouches_for_are_not_saved(make_run):
    run = await make_run(1, 2, 3)
    run.trainer.broken_on = 3
    await run.until(Phase.PAUSED)
    with pytest.raises(TrainingError, match="in the middle of a step"):
        await run.loop.save()


async def test_a_finished_run_can_be_rolled_back_and_stays_finished(make_run):
    run = await make_run(1, 2, 3, max_steps=3)
    await run.until(Phase.FINISHED)
    async with asyncio.timeout(10):
        await run.rollbacks.ask(2)
    await run.until(Phase.FINISHED)
    assert run.publisher.published[-1] == (0, 1, 2)


async def test_a_frozen_policy_lets_its_trainer_go_and_has_it_again_for_a_rollback(make_run):
    run = await make_run(1, 2, train=False)
    await run.until(Phase.SERVING)
    async with asyncio.timeout(10):
        while not run.trainer.closed:
            await asyncio.sleep(0.01)
    assert run.publisher.published == [(0, 1, 2)]
    await run.loop.save()  # there is nothing to save, and nobody to ask
    async with asyncio.timeout(10):
        await run.rollbacks.ask(1)
    assert run.publisher.published[-1] == (0, 1)
    async with asyncio.timeout(10):
        while not run.trainer.closed:
            await asyncio.sleep(0.01)


async def test_a_store_that_cannot_be_read_is_waited_for_and_the_loop_goes_on_by_itself(make_run, monkeypatch):
    monkeypatch.setattr(training_loop, "_LONGEST_WAIT_S", 0.01)
    run = await make_run(1, 2)
    await run.until(Phase.COLLECTING)
    waiting_attempts, left = run.store.waiting_attempts, 3

    async def away(policy):
        nonlocal left
        if left:
            left -= 1
            raise StoreError("the store could not be read: database is locked")
        return await waiting_attempts(policy)

    run.loop._wait_s = 0.01
    monkeypatch.setattr(run.store, "waiting_attempts", away)
    await run.until(Phase.WAITING)
    await run.until(Phase.COLLECTING)
    assert left == 0
    assert run.trainer.weights == (0, 1, 2)
    assert run.progress.problems == [
        "training waits for the store (the store could not be read: database is locked); serving goes on"
    ]


async def test_an_error_that_nobody_has_thought_of_pauses_training_and_not_the_daemon(make_run, monkeypatch):
    run = await make_run(1, 2)
    await run.until(Phase.COLLECTING)

    async def broken(_):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(run.store, "waiting_attempts", broken)
    run.loop.steps._stored.set()
    await run.until(Phase.PAUSED)
    assert "3 errors in a row, last: ZeroDivisionError: division by zero" in run.progress.detail
    run.rollbacks.end()


async def test_an_engine_that_stays_away_is_waited_for_and_the_daemon_goes_on(make_run, monkeypatch):
    monkeypatch.setattr(training_loop, "_LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr(training_loop, "_LOOK_AGAIN_S", 0.01)
    run = await make_run(1, 2, 3)
    run.loop._wait_s = 0.01
    run.publisher.engine_is_there.clear()
    await run.until(Phase.WAITING)
    await asyncio.sleep(0.1)
    assert run.progress.phase is Phase.WAITING
    assert run.progress.problems == ["training waits for the engine (the engine failed 6 times); serving goes on"]
    run.publisher.engine_is_there.set()
    await run.until(Phase.COLLECTING)
    assert run.publisher.published == [(0, 1, 2, 3)]


async def test_a_trainer_that_is_killed_again_and_again_is_waited_for(make_run, monkeypatch):
    monkeypatch.setattr(training_loop, "_FIRST_REST_S", 0.05)
    run = await make_run(1, 2, 3)
    load, deaths = run.trainer.load, 4

    async def killed(directory):
        nonlocal deaths
        if deaths:
            deaths -= 1
            raise TrainerDiedError("the trainer's process died; restart it")
        return await load(directory)

    monkeypatch.setattr(run.trainer, "load", killed)
    await run.until(Phase.WAITING)
    await run.until(Phase.COLLECTING, Phase.PAUSED)
    assert (run.progress.phase, deaths, run.trainer.weights) == (Phase.COLLECTING, 0, (0, 1, 2, 3))


async def test_going_back_does_not_wait_for_an_engine_that_stays_away(make_run, monkeypatch):
    """Before: the request hung until the engine was there."""
    monkeypatch.setattr(training_loop, "_LOOK_AGAIN_S", 0.01)
    run = await make_run(1, 2, 3)
    run.loop._wait_s = 0.01
    run.publisher.engine_is_there.clear()
    await run.until(Phase.WAITING)
    await asyncio.sleep(0.1)
    async with asyncio.timeout(10):
        with pytest.raises(TrainingError, match="it is recorded, and waits for the engine: the engine failed 6 times"):
            await run.rollbacks.ask(1)
        with pytest.raises(RollbackError, match="has no version 7"):
            await run.rollbacks.ask(7)
    assert run.trainer.weights == (0, 1)
    run.publisher.engine_is_there.set()
    await run.until(Phase.COLLECTING)
    assert run.publisher.published == [(0, 1)]


async def test_a_step_that_is_dropped_while_the_engine_stays_away_is_taken_out(make_run, monkeypatch):
    monkeypatch.setattr(training_loop, "_LOOK_AGAIN_S", 0.01)
    run = await make_run(1, 2, 3)
    run.loop._wait_s = 0.01
    run.publisher.engine_is_there.clear()
    await run.until(Phase.WAITING)
    await asyncio.sleep(0.1)
    await run.store.write(lambda connection: connection.execute("UPDATE steps SET state = 'assigned' WHERE step = 3"))
    await run.store.write(lambda connection: drop(connection, "p@3", reason="the trainer cannot"))
    run.rollbacks.look_again()
    async with asyncio.timeout(10):
        while run.trainer.weights != (0, 1, 2):
            await asyncio.sleep(0.01)


async def test_going_back_does_not_wait_for_a_trainer_that_is_killed_on_what_it_leaves_behind(make_run, monkeypatch):
    """Before: nobody looked at the request for up to half an hour."""
    run = await make_run(1, 2, 3)
    step = run.trainer.step

    async def killed(batch):
        if batch.step == 3:
            raise TrainerDiedError("the trainer's process died; restart it")
        return await step(batch)

    monkeypatch.setattr(run.trainer, "step", killed)
    await run.until(Phase.WAITING)
    async with asyncio.timeout(10):
        await run.rollbacks.ask(2)
    assert run.trainer.weights == (0, 1, 2)
    await run.until(Phase.COLLECTING)


async def test_going_back_with_a_trainer_that_is_killed_on_the_way_too_is_answered(make_run, monkeypatch):
    run = await make_run(1, 2, 3)
    tries = 0

    async def killed(directory):
        nonlocal tries
        tries += 1
        raise TrainerDiedError("the trainer's process died; restart it")

    monkeypatch.setattr(run.trainer, "load", killed)
    await run.until(Phase.WAITING)
    async with asyncio.timeout(10):
        with pytest.raises(TrainingError, match="it is recorded, and waits for the trainer: the trainer's process"):
            await run.rollbacks.ask(2)
    await asyncio.sleep(0.1)
    assert (run.progress.phase, tries) == (Phase.WAITING, 4)  # it rests again


async def test_a_pause_ends_by_itself_when_what_failed_works_again(make_run, monkeypatch):
    monkeypatch.setattr(training_loop, "_FIRST_REST_S", 0.05)
    run = await make_run(1, 2, 3)
    run.trainer.broken_on = 3
    await run.until(Phase.PAUSED)
    assert "it is tried again in 0 s" in run.progress.detail
    run.trainer.broken_on = None
    await run.until(Phase.COLLECTING)
    assert run.trainer.weights == (0, 1, 2, 3)


async def test_a_damaged_checkpoint_is_left_for_the_one_before_it(make_run, monkeypatch):
    monkeypatch.setattr(RecordingTrainer, "load", damaged_at(3, RecordingTrainer.load))
    run = await make_run(1, 2, 3, 4, checkpoints=(2, 3))
    await run.until(Phase.COLLECTING)
    assert run.trainer.weights == (0, 1, 2, 3, 4)
    assert run.checkpoints.steps() == [2]
    sentence = "the checkpoint of step 3 cannot be used and is set aside as step-00000003~1 (it is damaged)"
    assert sentence in run.progress.problems[0]


async def test_checkpoints_of_which_the_store_knows_nothing_are_set_aside(make_run, tmp_path):
    for number in (1, 2):  # another database was named, twice
        run = await make_run(checkpoints=(2,))
        await run.until(Phase.COLLECTING)
        assert run.checkpoints.steps() == []
        assert (tmp_path / f"checkpoints~{number}" / "step-00000002").is_dir()
        assert "the store has no step of policy p, but there were checkpoints" in run.progress.problems[0]


async def test_a_damaged_checkpoint_is_kept_until_it_was_gone_on_without(make_run, monkeypatch):
    monkeypatch.setattr(RecordingTrainer, "load", damaged_at(3, RecordingTrainer.load))
    run = await make_run(1, 2, 3, 4, checkpoints=(2, 3))
    run.trainer.broken_on = 4
    await run.until(Phase.PAUSED)
    assert sorted(path.name for path in run.checkpoints.root.iterdir()) == ["step-00000002", "step-00000003~1"]
    run.trainer.broken_on = None
    run.rollbacks.look_again()
    await run.until(Phase.COLLECTING)
    assert [path.name for path in run.checkpoints.root.iterdir()] == ["step-00000002"]


async def test_a_checkpoint_that_cannot_be_read_for_a_moment_is_tried_again(make_run, monkeypatch):
    monkeypatch.setattr(RecordingTrainer, "load", unreadable_once(RecordingTrainer.load))
    run = await make_run(1, 2, 3, 4, checkpoints=(2, 3))
    await run.until(Phase.COLLECTING)
    assert (run.trainer.weights, run.checkpoints.steps()) == ((0, 1, 2, 3, 4), [2, 3])
    assert "Stale file handle" in run.progress.problems[0]


@pytest.mark.timeout(60)
async def test_a_damaged_checkpoint_that_cannot_be_set_aside_is_left_all_the_same(make_run, monkeypatch):
    monkeypatch.setattr(RecordingTrainer, "load", damaged_at(3, RecordingTrainer.load))
    monkeypatch.setattr(Path, "rename", read_only)
    run = await make_run(1, 2, 3, 4, checkpoints=(2, 3))
    await run.until(Phase.COLLECTING)
    assert run.trainer.weights == (0, 1, 2, 3, 4)


def damaged_at(step: int, load: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    async def checked(self: RecordingTrainer, directory: Path) -> int:
        if directory.name.endswith(str(step)):
            raise CheckpointError("it is damaged")
        return await load(self, directory)

    return checked


def unreadable_once(load: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    tries = 0

    async def failing(self: RecordingTrainer, directory: Path) -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TrainingError(f"{directory} cannot be read now ([Errno 116] Stale file handle)")
        return await load(self, directory)

    return failing


def read_only(self: Path, target: Path) -> Path:
    raise OSError(30, "Read-only file system", str(self))


async def test_a_checkpoint_that_cannot_be_written_ends_nothing(make_run, monkeypatch):
    run = await make_run(1, 2, 3, max_steps=3)

    async def full(directory, step):
        raise CheckpointError(f"cannot write {directory}: No space left on device")

    monkeypatch.setattr(run.trainer, "save", full)
    await run.until(Phase.FINISHED)
    assert "no checkpoint of step 3" in run.progress.problems[0]


async def test_what_a_failing_store_interrupted_is_not_repeated_on_weights_that_moved(make_run, monkeypatch):
    monkeypatch.setattr(training_loop, "_LONGEST_WAIT_S", 0.01)
    run = await make_run(1, 2)
    shutil.rmtree(run.checkpoints.path(2))  # then all is repeated from the model itself
    run.loop._wait_s = 0.01
    batch, asked = run.store.batch, []

    async def away_once(policy, step):
        asked.append(step)
        if asked == [1, 2]:
            raise StoreError("the store could not be read: disk I/O error")
        return await batch(policy, step)

    monkeypatch.setattr(run.store, "batch", away_once)
    await run.until(Phase.WAITING)
    await run.until(Phase.COLLECTING, Phase.PAUSED)
    assert run.progress.phase is Phase.COLLECTING
    assert (asked, run.trainer.weights) == ([1, 2, 1, 2], (0, 1, 2))
    assert len(run.progress.problems) == 1


@pytest.mark.long
async def test_one_of_two_daemons_trains_and_the_other_goes_on_when_it_falls_silent(postgres_url, tmp_path):
    turn_s = 2.0
    limits = StoreConfig(turn_s=turn_s)
    async with contextlib.AsyncExitStack() as stack:
        runs, turns = [], []
        for name in ("one", "other"):
            store = await stack.enter_async_context(PostgresStore(postgres_url, limits))

            def turn(rollbacks: RollbackRequests, store: Store = store, name: str = name) -> Turn:
                turns.append(Turn("p", store=store, holder=name, rollbacks=rollbacks))
                return turns[-1]

            runs.append(Run(tmp_path, store, turn=turn))
        one, other = runs
        tasks: list[asyncio.Task] = []

        def begin(work: Coroutine) -> asyncio.Task:
            tasks.append(asyncio.create_task(work))
            return tasks[-1]

        begin(one.loop.run())
        keeping = begin(turns[0].keep(turn_s))
        await one.until(Phase.COLLECTING)
        begin(other.loop.run())
        begin(turns[1].keep(turn_s))
        await other.until(Phase.FOLLOWING)
        assert other.trainer.closed
        await one.record_steps(1)
        async with asyncio.timeout(10):
            await other.progress.wait_for_step(1, timeout_s=10)
            while other.publisher.served_kept[-1:] != [1]:  # its version is recorded after its step
                await asyncio.sleep(0.01)
        keeping.cancel()
        await other.until(Phase.COLLECTING)
        assert other.trainer.weights == (0, 1)
        with pytest.raises(TurnLostError):
            await one.record_steps(2)
        begin(turns[0].keep(turn_s))
        await one.until(Phase.FOLLOWING)
        await turns[1].give_up()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_rollback_that_is_asked_for_while_steps_are_repeated_is_done_after_them(make_run, monkeypatch):
    batch, asked = SqliteStore.batch, []

    async def asked_meanwhile(self, policy, step):
        if not asked:
            asked.append(asyncio.create_task(run.rollbacks.ask(2)))
            await asyncio.sleep(0)
        return await batch(self, policy, step)

    monkeypatch.setattr(SqliteStore, "batch", asked_meanwhile)
    run = await make_run(1, 2, 3, 4)
    async with asyncio.timeout(10):
        while not asked:
            await asyncio.sleep(0.01)
        await asked[0]
    assert [one.version for one in await run.store.rollbacks("p")] == [2]
    assert run.publisher.published[-1] == run.trainer.weights == (0, 1, 2)


async def test_a_rollback_that_is_asked_for_while_the_last_try_fails_is_done(make_run, monkeypatch):
    run = await make_run(1, 2, 3)
    asked: list[asyncio.Task] = []
    step = run.trainer.step

    async def fails(batch):
        if batch.step == 3:
            if run.loop._failures == 2:
                asked.append(asyncio.create_task(run.rollbacks.ask(2)))
                await asyncio.sleep(0)
            raise TrainingError("step 3 cannot be trained")
        return await step(batch)

    monkeypatch.setattr(run.trainer, "step", fails)
    async with asyncio.timeout(10):
        while not asked:
            await asyncio.sleep(0.01)
        await asked[0]
    assert run.publisher.published[-1] == (0, 1, 2)


@pytest.mark.parametrize("rests", [Phase.FINISHED, Phase.HELD])
async def test_promoting_a_version_of_a_loop_that_rests_leaves_it_as_it_was(make_run, rests):
    run = await make_run(1, 2, 3, max_steps=3 if rests is Phase.FINISHED else None)
    run.publisher.refuses = 3
    if rests is Phase.HELD:
        await run.until(Phase.COLLECTING)  # before that the loop has yet to read whether it was paused before
        await pause(run.store, run.rollbacks, "p", "over lunch")
    await run.until(rests)
    detail = run.progress.detail
    run.publisher.refuses = None
    async with asyncio.timeout(10):
        await run.rollbacks.ask(3, promote=True)
        await asyncio.sleep(0.05)
    assert (await run.store.live_version("p")).version == 3
    assert (run.progress.phase, run.progress.detail) == (rests, detail)


async def test_a_trainer_that_fails_on_a_promotion_of_a_finished_run_is_recovered(make_run, monkeypatch):
    run = await make_run(1, 2, 3, max_steps=3)
    run.publisher.refuses = 3
    await run.until(Phase.FINISHED)
    publish, times = run.publisher.publish, []

    async def dead_once(**asked):
        times.append(asked)
        if len(times) == 1:
            raise TrainerDiedError("the trainer's process died; restart it")
        return await publish(**asked)

    monkeypatch.setattr(run.publisher, "publish", dead_once)
    async with asyncio.timeout(10):
        with pytest.raises(TrainerDiedError):
            await run.rollbacks.ask(3, promote=True)
        while len(times) < 2:
            await asyncio.sleep(0.01)
    await run.until(Phase.FINISHED)


@pytest.mark.parametrize(("settings", "phase"), [({"train": False}, Phase.SERVING), ({"max_steps": 1}, Phase.FINISHED)])
async def test_who_waits_at_a_daemon_that_follows_hears_that_no_step_will_come(make_run, monkeypatch, settings, phase):
    async def of_another(self: Turn) -> bool:
        self.other = "http://other:8321"
        return False

    monkeypatch.setattr(Turn, "take", of_another)
    monkeypatch.setattr(SqliteStore, "shared", True)
    run = await make_run(1, **settings)
    await run.until(phase)
    async with asyncio.timeout(10):
        await run.progress.wait_for_step(2, timeout_s=60)


@pytest.mark.parametrize("cut_off", [True, False])
async def test_a_late_daemon_removes_no_checkpoint_of_the_one_that_trains_by_now(make_run, monkeypatch, cut_off):
    """Before: it believed that it still had the turn, and what was not on its own path went."""
    late = False

    async def renew(self: SqliteStore, policy: str) -> bool:
        if late and cut_off:
            raise StoreError("the server cannot be reached")
        return not late

    monkeypatch.setattr(SqliteStore, "shared", True)
    monkeypatch.setattr(SqliteStore, "renew_turn", renew)
    run = await make_run(1, 2, 3)
    await run.until(Phase.COLLECTING)
    for step in (40, 50):
        run.checkpoints.path(step).mkdir()
    late = True
    await run.loop.save()
    assert run.checkpoints.steps() == [2, 40, 50]
    late = False
    await run.loop.save()
    assert run.checkpoints.steps() == [2, 3]


async def test_a_daemon_that_follows_forgets_failures_after_a_good_look(make_run, monkeypatch):
    """Before: the third in its life, days apart, paused it for a minute, in which it did not take over either."""
    taken = asyncio.Event()

    async def of_another(self: Turn) -> bool:
        self.other = None if taken.is_set() else "http://other:8321"
        self.ours = taken.is_set()
        return self.ours

    monkeypatch.setattr(Turn, "take", of_another)
    monkeypatch.setattr(SqliteStore, "shared", True)
    monkeypatch.setattr(training_loop, "_LOOK_AGAIN_S", 0.01)
    looks = 0

    async def fails_at_times(self: RecordingPublisher) -> str | None:
        nonlocal looks
        looks += 1
        if looks in (2, 4, 6):
            raise OSError(116, "Stale file handle")
        return "p@v1 is live and not served here" if looks > 6 else None

    monkeypatch.setattr(RecordingPublisher, "follow", fails_at_times)
    run = await make_run(1)
    async with asyncio.timeout(10):
        while looks < 10:
            await asyncio.sleep(0.01)
    assert run.progress.problems[1:] == ["p@v1 is live and not served here"]
    taken.set()
    await run.until(Phase.COLLECTING)


async def test_what_agents_do_while_a_file_is_shown_waits_for_the_stage_behind_it(make_run, monkeypatch, tmp_path):
    stages = [{"algorithm": "sft", "data": tmp_path / "demos.jsonl", "steps": 2}, {"steps": 1}]
    shown = asyncio.Event()

    def no_file(self, step):
        shown.set()
        raise StoreError("the test has no file")

    monkeypatch.setattr(Demonstrations, "has", lambda self, step: step < 3)
    monkeypatch.setattr(Demonstrations, "build", no_file)
    run = await make_run(stage=stages)
    async with asyncio.timeout(10):
        await shown.wait()
    assert await run.store.scan(lambda connection: waiting.is_enrolled(connection, "p"))


async def test_who_asks_for_a_version_that_there_is_not_is_told_so_and_no_canary_ends_for_it(make_run, monkeypatch):
    run = await make_run(1, 2, 3)
    await refused(run, 2)
    await run.until(Phase.COLLECTING)
    assert not await run.loop.goes_back()
    canary = asyncio.Event()
    monkeypatch.setattr(run.loop, "_go_back", canary.wait)  # one of version 3 runs, and looks by itself
    for version, promote, sentence in (
        (7, False, "has no version 7"),
        (2, False, "was never served"),
        (3, False, "is what training goes on from already"),
        (1, True, "was served before"),
    ):
        asked = asyncio.create_task(run.rollbacks.ask(version, promote=promote))
        await asyncio.sleep(0)
        assert not await run.loop.goes_back()
        with pytest.raises(RollbackError, match=sentence):
            await asked
    for version, promote in ((1, False), (2, True), (3, True)):
        asked = asyncio.create_task(run.rollbacks.ask(version, promote=promote))
        await asyncio.sleep(0)
        assert await run.loop.goes_back()
        run.rollbacks.end()
        await asked
    assert await run.store.rollbacks("p") == []


async def test_training_that_was_paused_for_refused_publications_goes_on_from_what_is_promoted(make_run):
    run = await make_run(1, 2, 3)
    run.publisher.refuses, run.publisher.refused_in_a_row, run.publisher.last_reason = 3, 2, "the probe disagrees"
    await run.until(Phase.PAUSED)
    run.publisher.refuses = None
    async with asyncio.timeout(10):
        await run.rollbacks.ask(3, promote=True)
    await run.until(Phase.COLLECTING)
    assert (await run.store.live_version("p")).version == 3
