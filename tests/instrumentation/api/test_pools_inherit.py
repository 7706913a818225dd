"""Which thread belongs to the rollout that started it, and which is everyone's.

Where threads start with their starter's context, as in free-threaded Python 3.14, a pool's worker is nobody's. Older
interpreters stand in for that one: ``sys.flags.thread_inherit_context`` copies the context in ``Thread.start``.
"""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.scope import current


@pytest.fixture
def inheriting(recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
    begin = getattr(threading, name)

    def begin_inheriting(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        context = contextvars.copy_context()
        return begin(lambda *given: context.run(function, *given), *args, **kwargs)

    monkeypatch.setattr(threading, name, begin_inheriting)


def rollout_of() -> str | None:
    identity = current().identity
    return None if identity is None else identity.rollout_id


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ThreadPool])
def test_work_without_a_rollout_has_none_in_a_pool_that_a_rollout_has_started(inheriting, kind) -> None:
    with lt.rollout("t", rollout_id="r1"):
        pool = kind(1)
        run = (
            (lambda: pool.submit(rollout_of).result())
            if kind is ThreadPoolExecutor
            else (lambda: pool.apply(rollout_of))
        )
        assert run() == "r1"
    with pool:
        assert run() is None
        with lt.rollout("t", rollout_id="r2"):
            assert run() == "r2"
        assert run() is None


def test_a_thread_of_ones_own_belongs_to_the_rollout_that_started_it(inheriting) -> None:
    seen: list[str | None] = []
    with lt.rollout("t", rollout_id="r1"):
        thread = threading.Thread(target=lambda: seen.append(rollout_of()))
        thread.start()
    thread.join()
    assert seen == ["r1"]


def _watch_as_sentry_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its integration wraps ``run`` on the thread, as the function that the class, or another wrapper, has."""
    start = threading.Thread.start

    def watched_start(self: threading.Thread) -> None:
        run: Any = getattr(self.run, "__func__", self.run)
        self.run = lambda: run(threading.current_thread())
        start(self)

    monkeypatch.setattr(threading.Thread, "start", watched_start)


class _Subclass(threading.Thread):
    def run(self) -> None:
        self._target()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [threading.Thread, _Subclass])
@pytest.mark.parametrize("first", [False, True])
def test_a_thread_that_another_tool_watches_belongs_to_its_rollout(request, monkeypatch, kind, first) -> None:
    """Before: where the tool came first, the thread ended in a TypeError; where it came later, it had no rollout."""
    if first:
        _watch_as_sentry_does(monkeypatch)
    request.getfixturevalue("recording")
    if not first:
        _watch_as_sentry_does(monkeypatch)
    seen: list[str | None] = []
    with lt.rollout("t", rollout_id="r1"):
        thread = kind(target=lambda: seen.append(rollout_of()))
        thread.start()
    thread.join()
    assert seen == ["r1"]


def test_what_a_pool_of_processes_calls_back_is_in_no_rollout(recording) -> None:
    """Before: all of it was in the one that had used the pool first, and so were the rewards given there."""
    seen: list[str | None] = []
    done: list[Future[Any]] = []
    with ProcessPoolExecutor(1) as pool:
        for rollout_id in ("r1", "r2"):
            with lt.rollout("t", rollout_id=rollout_id):
                done.append(pool.submit(abs, -1))
                done[-1].add_done_callback(lambda _: seen.append(rollout_of()))
    assert [future.result() for future in done] == [1, 1]
    assert seen == [None, None]


def test_work_that_is_pickled_for_another_interpreter_is_left_as_it_is(recording) -> None:
    class InterpreterPoolExecutor(ThreadPoolExecutor):
        """Stands in for that of Python 3.14."""

        __module__ = "concurrent.futures.interpreter"

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return super().submit(fn, *args, **kwargs)

    with InterpreterPoolExecutor(1) as pool, lt.rollout("t", rollout_id="r1"):
        assert pool.submit(rollout_of).result() is None
