"""Turns of the engines that share a GPU: only one at a time changes how much of the GPU's memory it holds.

vLLM measures the memory of the whole device while it starts. Memory that another engine takes meanwhile is counted as
the starting engine's own, and leaves it no room for its key-value cache; memory that another engine gives back fails an
assertion, which ends the start. So an engine has the turn of its GPUs during its whole start, until it serves, and
whenever it falls asleep or wakes. Engines on different GPUs do not wait for each other.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.settings import EngineSettings


class GpuTurns:
    """The turns of all engines that a daemon runs on this machine."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def engine(self, settings: EngineSettings) -> "EngineInTurn":
        """Return an engine that has not been started."""
        return EngineInTurn(settings, self)

    @asynccontextmanager
    async def of(self, settings: EngineSettings) -> AsyncIterator[None]:
        """Hold the turn of each of an engine's GPUs while the block runs; an engine without GPUs does not wait."""
        async with AsyncExitStack() as held:
            for gpu in sorted(settings.gpus or ()):  # always in this order, or two engines could wait for each other
                await held.enter_async_context(self._locks[gpu])
            yield


class EngineInTurn(EngineProcess):
    """An engine's process that waits for its turn to start, to fall asleep and to wake."""

    def __init__(self, settings: EngineSettings, turns: GpuTurns) -> None:
        super().__init__(settings)
        self._turns = turns
        self._starting = AsyncExitStack()
        self._called_off = False

    async def start(self) -> None:
        await self._starting.enter_async_context(self._turns.of(self.settings))
        if self._called_off:
            self.killed = True  # nothing is wrong with it: as a killed engine, it is retried
            raise EngineError("the engine was to end before its turn to start on its GPU came")
        await super().start()

    async def ready(self, timeout_s: float) -> None:
        try:
            await super().ready(timeout_s)
        finally:
            await self._starting.aclose()

    async def stop(self) -> None:
        self._called_off = True
        await super().stop()
        await self._starting.aclose()

    async def sleep(self, level: int) -> None:
        async with self._turns.of(self.settings):
            await super().sleep(level)

    async def wake(self) -> None:
        async with self._turns.of(self.settings):
            await super().wake()
