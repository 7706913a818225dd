"""Releases the engine's GPU memory for a while: vLLM's sleep mode, behind the lock that publications take.

Invariant: no request is inside the engine while it sleeps. vLLM on the CPU stops scheduling and keeps its memory; on a
GPU level 1 moves the weights to the machine's memory, level 2 drops them, and both drop the key-value cache.
"""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from lightning_trainer.serving.host.weights.rw_lock import RwLock

logger = logging.getLogger(__name__)


class Sleep:
    """The sleep of one engine; its caller makes one call at a time."""

    def __init__(self, engine: Any, rw_lock: RwLock) -> None:
        self._engine = engine
        self._rw_lock = rw_lock
        self._closed: AsyncExitStack | None = None
        self.level = 0
        """The level of its sleep; 0 while it is awake."""

    async def begin(self, level: int, drain_timeout_s: float | None, abort: Callable[[], Awaitable[None]]) -> None:
        """Put the engine to sleep; do nothing if it sleeps already.

        Raises:
            DrainTimeout: running requests did not end.
        """
        if self.level:
            return
        started = time.monotonic()
        async with AsyncExitStack() as closed:
            await closed.enter_async_context(self._rw_lock.writing(drain_timeout_s, abort))
            drained_s = time.monotonic() - started
            await self._engine.sleep(level=level, mode="abort")
            self._closed, self.level = closed.pop_all(), level
        logger.info("asleep (level %d) after %.2f s, %.2f of them for requests", level, _since(started), drained_s)

    @asynccontextmanager
    async def ending(self) -> AsyncIterator[int]:
        """Wake the engine, and let requests in when the block is left; yield the level, or 0 if it was awake.

        If waking or the block fails, no request gets in any more: the engine has to end.
        """
        if not self.level:
            yield 0
            return
        started = time.monotonic()
        await self._engine.wake_up()
        yield self.level
        self.level = 0
        assert self._closed is not None
        await self._closed.aclose()
        logger.info("awake after %.2f s", _since(started))


def _since(started: float) -> float:
    return time.monotonic() - started
