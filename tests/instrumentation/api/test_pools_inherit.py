"""Where threads start with their starter's context, as in free-threaded Python 3.14, a pool's worker is nobody's.

Older interpreters stand in for that one: ``sys.flags.thread_inherit_context`` copies the context in ``Thread.start``.
"""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
