"""One GPU for trainer and engine: lent to the trainer while it computes, and taken back for the new weights.

Engines fall asleep before the first call of a trainer and wake a moment after the last, or at once for a publication:
a step, its checkpoint and the writing of its weights are one sleep. A trainer moves weights and optimizer out of the
GPU by itself when a call ends (``param_offload``).

Either trainers compute or versions go live, several of each at once. A newcomer waits only for those at work, not for
those that wait: a trainer that holds the loan while it starts may need a lock of one that waits for the loan.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Protocol

_log = logging.getLogger(__name__)

_LINGER_S = 1.0
"""How long engines sleep on after a trainer's call: the next call of the same step comes within milliseconds."""


class Sleeper(Protocol):
    """An engine, or several."""

    async def sleep(self, level: int) -> None:
        """Release the GPU's memory until ``wake``; does nothing if it is released."""
        ...

    async def wake(self) -> None:
        """Take the memory back; does nothing if it is not released."""
        ...


class GpuLoan(AbstractAsyncContextManager[None]):
    """The loan of a GPU, held around each call of a trainer, and ``for_engines`` around each publication."""

    def __init__(self, engines: Sequence[Sleeper], level: int, *, linger_s: float = _LINGER_S) -> None:
        """
        Args:
            engines: those that share a GPU with a trainer.
            level: of vLLM's sleep mode.
        """
        self._engines = tuple(engines)
        self._level = level
        self._linger_s = linger_s
        self._holders = 0
        """Trainers that have the GPU, or are about to."""
        self._returned = asyncio.Event()
        """Set while there are none."""
        self._returned.set()
        self._publications = 0
        self._published = asyncio.Event()
        """Set while there are none."""
        self._published.set()
        self._changing = asyncio.Lock()
        self._waking: asyncio.Task[None] | None = None
        self.wait_s = 0.0
        """How long trainers waited for engines to fall asleep, altogether."""

    async def __aenter__(self) -> None:
        self._holders += 1
        self._returned.clear()
        if self._waking is not None:
            self._waking.cancel()
        began = time.monotonic()
        try:
            await self._published.wait()  # no publication begins from now on
            async with self._changing:
                # An engine that was woken for a publication of another policy falls asleep again.
                await asyncio.gather(*(engine.sleep(self._level) for engine in self._engines))
        except BaseException:
            self._end()
            raise
        self.wait_s += time.monotonic() - began

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @asynccontextmanager
    async def for_engines(self) -> AsyncIterator[None]:
        """Hold off trainers while a version goes live, which wakes its engines: none computes, and none begins."""
        while self._holders:
            await self._returned.wait()
        self._publications += 1
        self._published.clear()
        try:
            yield
        finally:
            self._publications -= 1
            if not self._publications:
                self._published.set()

    async def close(self) -> None:
        """Wake the engines for good."""
        if self._waking is not None:
            self._waking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._waking
        await self._wake()

    def _end(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._returned.set()
            self._waking = asyncio.create_task(self._wake_later(), name="gpu-loan")

    async def _wake_later(self) -> None:
        await asyncio.sleep(self._linger_s)
        await asyncio.shield(self._wake())

    async def _wake(self) -> None:
        async with self._changing:
            if not self._holders:
                await asyncio.gather(*(engine.wake() for engine in self._engines))


# How the daemon's process uses memory: what a burst needed is kept for the next one, and what is permanent is not
# looked at again.
#
# Deliveries are megabytes that live for milliseconds. By default, glibc gives each back to the kernel and faults it in
# again, page by page, in an arena of every thread; and Python's collector walks over the hundred thousand objects of
# the imported modules to find nothing. Together that is a sixth of the time of storing a span. Source: mallopt(3);
# Python's ``gc.freeze``.

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_KEPT_BYTES = 64 * 2**20
_ARENAS = 2
_YOUNG_OBJECTS = 20_000
"""Objects allocated, minus those freed, between two collections of the youngest: more than one delivery's spans."""


def settle_memory() -> None:
    """Set up the memory of a process that is about to serve; call it once, when all is imported.

    Without glibc only Python's collector is set up.
    """
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):
        allocator.mallopt(_M_ARENA_MAX, _ARENAS)
        allocator.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        allocator.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 10, 10)
