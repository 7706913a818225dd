"""Attempts that are coroutines: those of a process share one event loop, in a thread of its own.

There is one loop for the life of the process, not one per attempt, because clients that an agent keeps from one attempt
to the next (``AsyncOpenAI``, ``aiohttp``) belong to the loop on which they were first used.
"""

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, TypeVar, cast

T = TypeVar("T")

_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""Event loops by process: a forked process has none of its parent's threads and gets a loop of its own."""
_making = threading.Lock()


class Waiting:
    """Whether anyone waits for a run's attempts; when nobody does any longer, its coroutines are cancelled.

    Python can stop no function, so these go on.
    """

    def __init__(self) -> None:
        self.ended = False
        self._awaited: set[Future[Any]] = set()
        self._lock = threading.Lock()

    def end(self) -> int:
        """Cancel what is awaited; return how many that were."""
        with self._lock:
            self.ended = True
            awaited = tuple(self._awaited)
        for running in awaited:
            running.cancel()
        return len(awaited)

    def begins(self, running: Future[Any]) -> None:
        """Cancel this one, too, if the end comes before its own."""
        with self._lock:
            self._awaited.add(running)
            ended = self.ended
        running.add_done_callback(self._is_done)
        if ended:
            running.cancel()

    def _is_done(self, running: Future[Any]) -> None:
        with self._lock:
            self._awaited.discard(running)


waiting: ContextVar[Waiting | None] = ContextVar("waiting", default=None)
"""Of the run whose attempt this is."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it only creates something to be awaited."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def result_of(value: T | Awaitable[T], timeout_s: float | None = None) -> T:
    """Return the value; an awaitable is awaited in a copy of the caller's context.

    Raises:
        TimeoutError: it took too long and was cancelled.
    """
    if not inspect.isawaitable(value):
        return cast("T", value)
    # The loop copies the caller's context with the coroutine, and so the attempt's identity.
    running = asyncio.run_coroutine_threadsafe(_awaited(value), _loop_of(os.getpid()))
    if (waited := waiting.get()) is not None:
        waited.begins(running)
    try:
        return running.result(timeout_s)
    except TimeoutError:
        if running.done():
            raise
        running.cancel()
        raise TimeoutError(f"nothing came within {timeout_s:g} s") from None
    except KeyboardInterrupt:  # also what cancels a Ray task
        running.cancel()
        raise


async def _awaited(value: Awaitable[T]) -> T:
    try:
        return await value
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        # KeyboardInterrupt and SystemExit would end the loop, and others, such as a panic in Rust, their worker.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _loop_of(pid: int) -> asyncio.AbstractEventLoop:
    with _making:  # the first attempts of a run ask at the same moment
        if pid not in _loops:
            _loops[pid] = asyncio.new_event_loop()
            threading.Thread(target=_loops[pid].run_forever, name="attempts", daemon=True).start()
        return _loops[pid]
