"""Attempts that are coroutines: all those of a process share one event loop, which has a thread of its own.

There is one loop for the life of the process, not one per attempt, because clients that an agent keeps from one attempt
to the next (``AsyncOpenAI``, ``aiohttp``) belong to the loop on which they were first used.
"""

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar, cast

T = TypeVar("T")

_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""Event loops by process: a forked process has none of its parent's threads and gets a loop of its own."""
_making = threading.Lock()


class Waiting:
    """Whether a run still waits for its attempts; once it no longer does, its coroutines are cancelled, and its
    programs killed.

    Attempts that are functions continue, because Python cannot stop a function.
    """

    def __init__(self) -> None:
        self.ended = False
        self._stops: set[Callable[[], object]] = set()
        self._lock = threading.Lock()

    def end(self) -> int:
        """Stop every attempt that can be stopped, and return how many there were."""
        with self._lock:
            self.ended = True
            stops = tuple(self._stops)
        for stop in stops:
            stop()
        return len(stops)

    @contextmanager
    def stops(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call ``stop`` if ``end`` is called within the block, or was called before."""
        with self._lock:
            self._stops.add(stop)
            ended = self.ended
        try:
            if ended:
                stop()
            yield
        finally:
            with self._lock:
                self._stops.discard(stop)


waiting: ContextVar[Waiting | None] = ContextVar("waiting", default=None)
"""The ``Waiting`` of the current attempt's run."""


def stopped_with_run(stop: Callable[[], object]) -> AbstractContextManager[None]:
    """Call ``stop`` if the current attempt's run ends within the block, or has ended before."""
    waited = waiting.get()
    return nullcontext() if waited is None else waited.stops(stop)


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
    # With the coroutine, the loop copies the caller's context, and so the attempt's identity.
    running = asyncio.run_coroutine_threadsafe(_awaited(value), _loop_of(os.getpid()))
    try:
        with stopped_with_run(running.cancel):
            return running.result(timeout_s)
    except TimeoutError:
        if running.done():
            raise
        running.cancel()
        raise TimeoutError(f"nothing came within {timeout_s:g} s") from None
    except KeyboardInterrupt:  # Ray cancels its tasks with this, too
        running.cancel()
        raise


async def _awaited(value: Awaitable[T]) -> T:
    try:
        return await value
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        # KeyboardInterrupt and SystemExit would end the loop; others, such as a panic in Rust, would end the worker.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _loop_of(pid: int) -> asyncio.AbstractEventLoop:
    with _making:  # the first attempts of a run ask at the same moment
        if pid not in _loops:
            _loops[pid] = asyncio.new_event_loop()
            threading.Thread(target=_loops[pid].run_forever, name="attempts", daemon=True).start()
        return _loops[pid]
