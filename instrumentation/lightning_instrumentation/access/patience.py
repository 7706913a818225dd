"""How long a call waits for the daemon: no longer than its caller waits for an answer, and without blocking an event
loop.

A hook passes its caller's time limits to the code below it in a context variable. If the hook has already waited, that
code gets the outcome and does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

monotonic: Callable[[], float] = partial(getattr(sys.modules.get("freezegun.api"), "real_monotonic", time.monotonic))
"""``time.monotonic``, in seconds, hidden from freezegun: if a test freezes the clock, our threads still wait and time
out. All times that the client compares come from this clock."""

_PARTS = ("total", "connect", "sock_connect", "read", "sock_read")
"""Attributes of the time limits of httpx and aiohttp."""


@dataclass(frozen=True, slots=True)
class Patience:
    """What a hook knows about its call."""

    timeout: Any = None
    """The caller's time limits, in the form of their library."""
    met: bool = False
    """Whether the hook has waited already."""
    error: Exception | None = None
    """Why the daemon did not prove itself while the hook waited; None if it did, or the hook did not wait."""

    def at_most(self, seconds: float) -> float:
        """Return how long to wait, in seconds: ``seconds``, or the shortest of the caller's limits if that is less."""
        return min(seconds, shortest(self.timeout))


AT_ONCE = Patience(0.0)
"""The hook is on an event loop and expects that there is nothing to wait for."""
UNTOLD = Patience()
_current: ContextVar[Patience] = ContextVar("lightning.patience", default=UNTOLD)


def current_patience() -> Patience:
    """Return what the hook of the current call knows about it."""
    return _current.get()


def be_patient(patience: Patience) -> Patience:
    """Set the patience for the code that follows; return the previous one."""
    before = _current.get()
    _current.set(patience)
    return before


def shortest(timeout: Any) -> float:
    """Return the shortest of a caller's time limits, in any library's form, in seconds; infinity if there is none."""
    if timeout is None or isinstance(timeout, bool):
        return float("inf")
    if isinstance(timeout, (int, float)):
        return max(0.0, float(timeout))
    if isinstance(timeout, Mapping):
        parts = tuple(timeout.values())
    elif isinstance(timeout, tuple):
        parts = timeout
    else:
        parts = tuple(getattr(timeout, name, None) for name in _PARTS)
    return min(map(shortest, parts), default=float("inf"))


async def off_loop(function: Callable[[], T]) -> T:
    """Call a function that may block in a thread of its own, and await it; on a loop of neither asyncio nor trio, call
    it directly.

    The loop's executor is not used: its few threads are the program's, and a process waits for them before it ends.
    """
    # Trio first: in guest mode, it runs on a thread that also has asyncio's loop.
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    if lowlevel is not None:
        try:
            lowlevel.current_task()
        except RuntimeError:
            pass
        else:
            return await _off_trio(function, sys.modules["trio"])
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return function()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(future: Future[T]) -> None:
        if outcome.done():  # its caller has given up
            return
        error = future.exception()
        if error is None:
            outcome.set_result(future.result())
        else:
            outcome.set_exception(error)

    def ended(future: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, future)

    _in_thread(function, ended)
    return await outcome


async def _off_trio(function: Callable[[], T], trio: Any) -> T:
    token, done = trio.lowlevel.current_trio_token(), trio.Event()

    def ended(_: Future[T]) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(done.set)

    future = _in_thread(function, ended)
    await done.wait()
    return future.result()


def _in_thread(function: Callable[[], T], ended: Callable[[Future[T]], None]) -> Future[T]:
    """Call ``function`` in a thread of its own, in a copy of this context; then call ``ended`` there."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)
        ended(future)

    threading.Thread(target=copy_context().run, args=(run,), name="lightning-wait", daemon=True).start()
    return future
