"""Readers and a writer: requests go through together, a publication alone.

Invariant: no token is sampled between the moment a publication holds the lock and the moment it lets go, so one version
samples all tokens of a response. A waiting publication goes before requests that come after it, so a stream of requests
never starves it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

_ABORT_AGAIN_S = 1.0


class DrainTimeout(Exception):
    """Requests were still running after the abort."""


class RwLock:
    """An asynchronous readers-writer lock that prefers the writer. One event loop, no threads."""

    def __init__(self, abort_timeout_s: float = 60.0) -> None:
        """``abort_timeout_s``: how long aborted requests have to end, which does not include computing."""
        self._abort_timeout_s = abort_timeout_s
        self._readers = 0
        self._writers = 0
        """Writers that wait or are inside."""
        self._changed = asyncio.Condition()
        self._writing = asyncio.Lock()

    @property
    def running(self) -> int:
        """Return the number of requests inside."""
        return self._readers

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Go inside once no publication waits or holds the lock."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._writers == 0)
            self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            await asyncio.shield(self._notify())

    @asynccontextmanager
    async def writing(self, drain_timeout_s: float | None, abort: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Hold new requests, wait for the running ones, and be alone.

        Args:
            drain_timeout_s: after this long (None: never) ``abort`` is called, which must end the running requests, and
                then again every second: a request inside may reach the engine only after an ``abort``.

        Raises:
            DrainTimeout: some requests did not end; the lock is free again.
        """
        async with self._writing:
            self._writers += 1
            try:
                if not await self._drained(drain_timeout_s):
                    await self._end_running(abort)
                yield
            finally:
                self._writers -= 1
                await asyncio.shield(self._notify())

    async def _end_running(self, abort: Callable[[], Awaitable[None]]) -> None:
        give_up = time.monotonic() + self._abort_timeout_s
        while (left := give_up - time.monotonic()) > 0:
            await abort()
            if await self._drained(min(left, _ABORT_AGAIN_S)):
                return
        raise DrainTimeout(f"{self._readers} requests did not end within {self._abort_timeout_s} s of an abort")

    async def _drained(self, timeout_s: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._readers == 0)
        except TimeoutError:
            return False
        return True

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
