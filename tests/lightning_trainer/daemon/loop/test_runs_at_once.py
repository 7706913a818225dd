"""Several runs over the same tasks at once, against the daemon's own loops and routes: only the trainer is left out.

``tests/loop/test_runs.py`` has the same with real engines and trainers.
"""

import asyncio
import contextlib
import itertools
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning_instrumentation as lt
import pytest
import uvicorn
from fastapi import FastAPI
from lightning_instrumentation import semconv
from lightning_instrumentation.scope import current

from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.api.runs import runs_router
from lightning_trainer.daemon.api.status import status_router
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.training_loop import TrainingLoop
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.errors import LightningError
from lightning_trainer.ingest.http.otlp import otlp_router
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.rollouts import Runner
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import PolicyVersion, RolloutMode, Span, StepReport, TrainingBatch, VersionState

GROUPS, SIZE, STEPS, TOKENS = 2, 2, 3, 4
POLICIES = ("red", "blue")
_numbers = itertools.count(1)


class Task:
    def __init__(self, task_id: str) -> None:
        self.id = task_id


def tasks_of(step: int) -> list[Task]:
    return [Task(f"task-{number}") for number in range(GROUPS)]


class Side:
    """One policy's loop, with a trainer that keeps its batches."""

    def __init__(self, policy: PolicyConfig, store: SqliteStore, sink: NotifyingStore, folder: Path) -> None:
        self.policy = policy
        self.batches: list[TrainingBatch] = []
        self.progress = Progress()
        self.refused_in_a_row = 0
        self.metrics = SimpleNamespace(warnings={}, rows=[])
        self._store = store
        stored = sink.watch(policy.name, self.progress)
        itself: Any = self
        self.loop = TrainingLoop(
            LoopContext(
                policy=policy,
                store=store,
                progress=self.progress,
                metrics=MetricsRecorder(policy.name, store, folder=folder),
                rollbacks=RollbackRequests(wake=stored),
                stored=stored,
                one_of_several=True,
            ),
            trainer=itself,
            publisher=itself,
            checkpoints=CheckpointFolder(folder / policy.name, keep=1),
        )

    async def step(self, batch: TrainingBatch) -> StepReport:
        self.batches.append(batch)
        return StepReport(batch.step, {}, {}, 1, 1, 1, {})

    async def save(self, directory: Path, step: int) -> None: ...

    async def set_aside(self) -> None: ...

    async def publish(
        self, *, version: int, step: int, asked_for: bool = False, changed: str | None = None
    ) -> PolicyVersion:
        made = PolicyVersion(self.policy.name, version, step, VersionState.LIVE, 0)
        await self._store.put_version(made)
        return made


class Daemon:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    async def _serve(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        async with SqliteStore(self._folder / "lightning.sqlite") as self.store:
            self._sink = NotifyingStore(self.store)
            named = [
                {"name": name, "agents": [name], "model": "random:tiny", "group_size": SIZE, "groups_per_step": GROUPS}
                for name in POLICIES
            ]
            policies = Config.model_validate({"policy": named}).policy
            sides = [Side(policy, self.store, self._sink, self._folder) for policy in policies]
            self.sides = {side.policy.name: side for side in sides}
            app = FastAPI()
            watched: list[Any] = sides
            for router in (status_router(watched, store=self.store), runs_router(self.store), otlp_router(self._sink)):
                app.include_router(router)
            app.get("/healthz")(lambda: {"status": "ok", "version": "0"})
            config = uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1)
            self._server = uvicorn.Server(config)
            loops = [asyncio.create_task(side.loop.run()) for side in sides]
            serving = asyncio.create_task(self._server.serve())
            while not self._server.started:
                await asyncio.sleep(0.01)
            self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
            self._ready.set()
            await asyncio.wait({serving, *loops}, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._event_loop).result(30)

    def answer(self, policy: str) -> None:
        """Record a call as the gateway does: before it is answered, and of the rollout that goes on here."""
        identity = current().identity
        assert identity is not None
        call = {
            **identity.attributes(),
            semconv.AGENT_NAME: policy,
            semconv.OPERATION: semconv.CHAT,
            semconv.RESPONSE_ID: f"response-{next(_numbers)}",
            semconv.POLICY: policy,
            semconv.POLICY_VERSION: 0,
            semconv.PROMPT_TOKEN_IDS: array("i", [1, 2]).tobytes(),
            semconv.CHOICES: 1,
            semconv.response_token_ids(0): array("i", range(TOKENS)).tobytes(),
            semconv.response_logprobs(0): array("f", [-0.5] * TOKENS).tobytes(),
        }
        now, place = time.time_ns(), next(_numbers)
        span = Span(f"{place:032x}", f"{place:016x}", None, "chat", now, now + 1, call, scope=semconv.GATEWAY_SCOPE)
        self.wait(self._sink.append([span]))


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    # A runner hears of what was dropped when its daemon answers that nothing has changed, after five seconds else.
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client._POLL_S", 0.5)
    lt.shutdown(0)
    daemon = Daemon(tmp_path)
    lt.init(daemon.url, spool_dir=tmp_path / "spool")
    yield daemon
    lt.shutdown(0)
    daemon.stop()


def rewarded_every_second_time(daemon: Daemon, policy: str, hangs: threading.Event | None = None):
    made = itertools.count()

    def attempt(task: Task) -> float:
        if hangs is not None:
            assert hangs.wait(60)
        daemon.answer(policy)
        return float(next(made) % 2)

    return attempt


def train(daemon: Daemon, policy: str, attempt: Any, **options: Any) -> None:
    Runner(policy, attempt, endpoint=daemon.url, concurrency=1, **options).train(tasks_of, steps=STEPS)


def finished(daemon: Daemon, policy: Any, attempt: Any, *, steps: int, **options: Any) -> None:
    """Train to the end, or fail: a run that waits for ever shall not hold up the tests."""
    runner = Runner(policy, attempt, endpoint=daemon.url, concurrency=4, **options)
    run = threading.Thread(target=lambda: runner.train(tasks_of, steps=steps), daemon=True)
    run.start()
    run.join(60)
    assert not run.is_alive(), {name: side.progress.problems for name, side in daemon.sides.items()}


def groups_of_steps(daemon: Daemon, policy: str, prefix: str = "") -> list[set[str]]:
    """Return the groups that each step of a policy took."""
    asked = [
        daemon.wait(daemon.store.ended_by_group(prefix, taken=(policy, step, step + 1)))
        for step in range(daemon.sides[policy].progress.steps_done)
    ]
    return [set(groups) for groups in asked]


def test_a_team_whose_member_is_not_called_in_a_group_goes_on_with_the_same_groups(daemon: Daemon) -> None:
    made = {task.id: itertools.count() for task in tasks_of(1)}

    def attempt(task: Task) -> float:
        daemon.answer("red")
        if task.id == "task-0":
            daemon.answer("blue")
        return float(next(made[task.id]) % 2)

    finished(daemon, list(POLICIES), attempt, steps=2, run="team")
    whole = [{f"team/step-{step}/task-{number}" for number in range(GROUPS)} for step in (1, 2)]
    assert groups_of_steps(daemon, "red") == groups_of_steps(daemon, "blue") == whole
    said = [problem for problem in daemon.sides["blue"].progress.problems if "team/step-1/task-1" in problem]
    assert len(said) == 1
    assert "0 of its 2 attempts can be compared" in said[0]
    assert daemon.sides["red"].progress.problems == []


def test_a_group_that_failed_before_its_first_call_is_taken_by_the_policy_of_its_run(daemon: Daemon) -> None:
    rewarded = rewarded_every_second_time(daemon, "red")

    def attempt(task: Task) -> float:
        if task.id == "task-1":
            raise ValueError("cannot read the task")
        return rewarded(task)

    finished(daemon, "red", attempt, steps=2, run="alone")
    assert [len(groups) for groups in groups_of_steps(daemon, "red")] == [GROUPS, GROUPS]
    assert any("alone/step-1/task-1" in problem for problem in daemon.sides["red"].progress.problems)
    assert daemon.sides["blue"].progress.steps_done == 0


@pytest.mark.parametrize("again", [False, True])
def test_a_run_tries_another_task_for_a_group_that_was_dropped(
    daemon: Daemon, again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that is started when the group is out already."""
    if again:
        for number in range(SIZE):
            with lt.rollout("task-1", group_id="mine/step-1/task-1", policies=["red"]):
                daemon.answer("red")
                lt.reward(float(number))
        assert lt.flush(20)
    rewarded, begun = rewarded_every_second_time(daemon, "red"), Counter[str]()
    dropped = threading.Event()

    def attempt(task: Task) -> float:
        begun[task.id] += 1
        if task.id == "task-0":
            assert dropped.wait(60)
        return rewarded(task)

    def drop() -> None:
        while daemon.wait(daemon.store.ended_by_group("mine/step-1/task-1")) != {"mine/step-1/task-1": SIZE}:
            time.sleep(0.05)
            lt.flush(5)
        daemon.wait(daemon.store.drop("mine/step-1/task-1", reason="a bad task"))
        dropped.set()

    threading.Thread(target=drop, daemon=True).start()
    finished(daemon, "red", attempt, steps=2, run="mine")
    first, second = groups_of_steps(daemon, "red", "mine/")
    assert first == {f"mine/step-1/task-{number}" for number in range(GROUPS)} | {"mine/step-2/task-0"}
    assert second == {"mine/step-2/task-1", "mine/step-3/task-0"}, "nothing was begun that no step waits for"
    assert begun == {"task-0": 3 * SIZE, "task-1": (1 if again else 2) * SIZE}
    trained = [sample.group_id for batch in daemon.sides["red"].batches for sample in batch.samples]
    assert "mine/step-1/task-1" not in trained
    (said,) = [record.getMessage() for record in caplog.records if "mine/step-1/task-1" in record.getMessage()]
    assert "another" in said


def test_a_team_goes_on_where_one_of_its_policies_has_another_run(daemon: Daemon) -> None:
    """The steps of the one take other groups than those of its fellow, and the team's run makes enough for both."""
    made = itertools.count()

    def team(task: Task) -> float:
        daemon.answer("red")
        daemon.answer("blue")
        return float(next(made) % 2)

    finished(daemon, list(POLICIES), team, steps=1, run="team")
    finished(daemon, "red", rewarded_every_second_time(daemon, "red"), steps=2, run="alone")
    finished(daemon, list(POLICIES), team, steps=4, run="team")
    assert daemon.sides["blue"].progress.steps_done == 4


def test_runs_of_the_same_tasks_train_every_token_and_none_waits_for_another(daemon: Daemon) -> None:
    go = threading.Event()
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        stack.callback(go.set)
        slow = pool.submit(train, daemon, "red", rewarded_every_second_time(daemon, "red", go), run="slow")
        runs = [
            pool.submit(train, daemon, name, rewarded_every_second_time(daemon, name)) for name in ("red", *POLICIES)
        ]
        for run in runs:
            run.result(120)
        assert not slow.done()
        go.set()
        slow.result(120)

    attempts = daemon.wait(daemon.store.attempts())
    made = Counter(attempt.group_id.partition("/")[0] for attempt in attempts)
    label = f"{__name__}.rewarded_every_second_time.attempt"
    assert made.keys() == {f"red:{label}", f"red:{label}-2", f"blue:{label}", "slow"}
    assert set(Counter(attempt.group_id for attempt in attempts).values()) == {SIZE}, "nobody shared a group"
    for name, side in daemon.sides.items():
        own = sum(count for run, count in made.items() if run.startswith(name) or (run, name) == ("slow", "red"))
        deadline = time.monotonic() + 60
        while side.progress.steps_done < own // (GROUPS * SIZE):
            assert time.monotonic() < deadline, f"{side.progress.steps_done} steps of {name}, {own} attempts"
            time.sleep(0.05)
        samples = [sample for batch in side.batches for sample in batch.samples]
        assert len({sample.attempt_id for sample in samples}) == own
        assert sum(sum(sample.loss_mask) for sample in samples) == TOKENS * own
        ledger = daemon.wait(daemon.store.ledger(name))
        assert {(row.agent, row.outcome) for row in ledger} == {(name, "trained")}


def test_a_run_that_is_started_again_makes_what_is_left_of_its_own_groups(daemon: Daemon) -> None:
    for name, count in (("mine", 1), ("other", SIZE)):  # an attempt of mine, and the same task done by another run
        for number in range(count):
            with lt.rollout("task-0", group_id=f"{name}/step-1/task-0"):
                daemon.answer("red")
                lt.reward(float(number))
    assert lt.flush(20)
    made: Counter[str] = Counter()

    def attempt(task: Task) -> float:
        made[task.id] += 1
        daemon.answer("red")
        return float(made[task.id] % 2)

    Runner("red", attempt, endpoint=daemon.url, concurrency=1, run="mine").train(tasks_of, steps=1)
    assert made == {"task-0": SIZE - 1, "task-1": SIZE}


def test_what_is_recorded_for_a_dataset_is_in_no_step_and_goes_on_where_it_was(daemon: Daemon) -> None:
    made: Counter[str] = Counter()

    def attempt(task: Task) -> float:
        made[task.id] += 1
        daemon.answer("red")
        return float(made[task.id] % 2)

    runner = Runner("red", attempt, endpoint=daemon.url, concurrency=1, run="mine")
    assert [one.reward for one in runner.record(tasks_of(1), attempts=SIZE)] == [1.0, 0.0] * GROUPS
    recorded = {f"mine/record/task-{number}": SIZE for number in range(GROUPS)}
    assert daemon.wait(daemon.store.ended_by_group("", mode=RolloutMode.RECORD)) == recorded

    runner.train(tasks_of, steps=1)  # whole groups of the policy's are there, and no step takes them
    assert groups_of_steps(daemon, "red") == [{f"mine/step-1/task-{number}" for number in range(GROUPS)}]
    assert daemon.sides["red"].progress.problems == []

    made.clear()
    assert len(runner.record(tasks_of(1), attempts=SIZE + 1)) == GROUPS
    assert made == dict.fromkeys(("task-0", "task-1"), 1)
    assert runner.record(tasks_of(1), attempts=SIZE + 1) == []
    # Of no policy, and several policies, nothing else is asked.
    for policy in ((), POLICIES):
        again = Runner(policy, attempt, endpoint=daemon.url, run="mine")
        assert again.record(tasks_of(1), attempts=SIZE) == []


def test_a_recording_that_could_hold_nothing_is_refused(daemon: Daemon) -> None:
    runner = Runner((), lambda task: 1.0, endpoint=daemon.url)
    with pytest.raises(LightningError, match="attempts is 0, at 2 tasks with 2 different ids; record at least 1"):
        runner.record(tasks_of(1), attempts=0)
    with pytest.raises(LightningError, match=r"at 4 tasks with 2 different ids; .* give every task an id of its own"):
        runner.record([*tasks_of(1), *tasks_of(1)], attempts=1)
