"""Attempts that are coroutines: awaited side by side on one loop, each in its own rollout, with its own limit."""

import asyncio
import functools
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.scope import current

from lightning_trainer.rollouts import Runner, awaiting
from lightning_trainer.rollouts.attempt import AttemptEnded, AttemptFunction, run_attempt


@dataclass(frozen=True)
class Task:
    id: str


@pytest.fixture(autouse=True)
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)
    lt.shutdown(0)
    lt.init("http://127.0.0.1:9", spool_dir=tmp_path)
    yield
    lt.shutdown(0)


def run(attempt: AttemptFunction[Task], timeout_s: float = 30.0) -> AttemptEnded:
    return run_attempt(attempt, Task("q"), stage="train", step=1, group_id="g", mode="train", timeout_s=timeout_s)


async def half(task: Task) -> float:
    await asyncio.sleep(0)
    return 0.5


class Callable:
    async def __call__(self, task: Task) -> float:
        return await half(task)


async def never_scored(task: Task) -> None: ...


@pytest.mark.parametrize(
    ("attempt", "reward"),
    [
        (half, 0.5),
        (lambda task: half(task), 0.5),
        (functools.partial(half), 0.5),
        (Callable(), 0.5),
        (lt.agent("solver")(half), 0.5),
        (never_scored, None),
    ],
    ids=["coroutine function", "function", "partial", "callable", "decorated", "no reward"],
)
def test_what_is_to_be_awaited_is_awaited(attempt: AttemptFunction[Task], reward: float | None) -> None:
    ended = run(attempt)
    assert (ended.reward, ended.error) == (reward, None)


def test_many_are_awaited_at_once_on_one_loop_each_in_its_own_rollout() -> None:
    inside: set[str] = set()
    most = 0
    threads: set[int] = set()
    identities: list[tuple[str, str | None, str]] = []

    async def attempt(task: Task) -> float:
        nonlocal most
        inside.add(task.id)
        most = max(most, len(inside))
        threads.add(threading.get_ident())
        for _ in range(5):
            await asyncio.sleep(0.01)
            identity = current().identity
            assert identity is not None
            identities.append((task.id, identity.task_id, identity.rollout_id))
        inside.discard(task.id)
        return float(task.id)

    tasks = [Task(str(number)) for number in range(60)]
    ended = Runner("p", attempt, endpoint="http://127.0.0.1:9", concurrency=20).evaluate(tasks, stage="s")
    assert [one.reward for one in ended] == [float(task.id) for task in tasks], [one.error for one in ended]
    assert 10 < most <= 20
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    assert all(task_id == known for task_id, known, _ in identities)
    assert len({rollout for *_, rollout in identities}) == len(tasks)


def test_one_that_takes_too_long_is_cancelled_and_the_others_go_on() -> None:
    cleaned_up = threading.Event()

    async def hangs(task: Task) -> float:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned_up.set()
        return 1.0

    began = time.monotonic()
    ended = run(hangs, timeout_s=0.2)
    assert (ended.reward, ended.error) == (None, "TimeoutError: the attempt did not end within 0.2 s")
    assert time.monotonic() - began < 20
    assert cleaned_up.wait(20)
    assert run(half).reward == 0.5


def test_one_whose_caller_is_interrupted_is_cancelled() -> None:
    """As Ray interrupts a task that is cancelled."""
    # A test run in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    caller = threading.get_ident()
    threading.Timer(0.5, signal.pthread_kill, [caller, signal.SIGINT]).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            awaiting.result_of(waits())
    finally:
        signal.signal(signal.SIGINT, before)
    assert cancelled.wait(10)


async def raises(task: Task) -> float:
    raise KeyError("parcel")


async def times_out_itself(task: Task) -> float:
    raise TimeoutError("the tool was slow")


async def exits(task: Task) -> float:
    sys.exit("no key")


def exits_at_once(task: Task) -> float:
    sys.exit("no key")


class PanicException(BaseException):
    """As that of pyo3, in which many packages in Rust panic; ``pytest.fail`` raises such a one, too."""


async def panics(task: Task) -> float:
    """Before: the run hung."""
    raise PanicException("called `Option::unwrap()` on a `None` value")


def panics_at_once(task: Task) -> float:
    raise PanicException("no plugin")


async def cancels_itself(task: Task) -> float:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("attempt", "error"),
    [
        (raises, "KeyError: 'parcel'"),
        (times_out_itself, "TimeoutError: the tool was slow"),
        (exits, "RuntimeError: SystemExit: no key"),
        (exits_at_once, "RuntimeError: SystemExit: no key"),
        (panics, "RuntimeError: PanicException: called `Option::unwrap()` on a `None` value"),
        (panics_at_once, "RuntimeError: PanicException: no plugin"),
        (cancels_itself, "CancelledError: "),
    ],
)
def test_whatever_it_raises_is_a_failed_attempt(attempt: AttemptFunction[Task], error: str) -> None:
    ended = run(attempt)
    assert (ended.reward, ended.error) == (None, error)
    assert run(half).reward == 0.5, "the loop is alive"


def test_attempts_that_begin_at_the_same_moment_get_one_loop(monkeypatch) -> None:
    make = asyncio.new_event_loop
    monkeypatch.setattr(awaiting, "_loops", {})
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: (time.sleep(0.05), make())[1])
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: awaiting._loop_of(1), range(8)))) == 1


def test_a_client_that_belongs_to_a_loop_can_be_kept_between_runs() -> None:
    loops = set()

    async def attempt(task: Task) -> float:
        loops.add(asyncio.get_running_loop())
        return 1.0

    for _ in range(2):
        Runner("p", attempt, endpoint="http://127.0.0.1:9").evaluate([Task("a"), Task("b")], stage="s")
    assert len(loops) == 1
