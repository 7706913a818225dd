"""The census of a store that a daemon is writing: counted when somebody asks and something was stored since."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from lightning_trainer.agents.census import AgentCensus, count_agents, slim
from lightning_trainer.store.counts import StoreCounts
from lightning_trainer.store.scan import traces


class ScannableStore(Protocol):
    async def counts(self) -> StoreCounts: ...

    async def scan(self, query: Callable) -> list[AgentCensus]: ...


class LiveCensus:
    """One count at a time, however many ask; reading happens in a thread of the store's, on one snapshot."""

    def __init__(self, store: ScannableStore) -> None:
        self._store = store
        self._counting = asyncio.Lock()
        self._spans = -1
        self._census: Sequence[AgentCensus] = ()

    async def get(self) -> Sequence[AgentCensus]:
        async with self._counting:
            spans = (await self._store.counts())["spans"]
            if spans != self._spans:
                self._census = await self._store.scan(lambda connection: count_agents(traces(connection, slim)))
                self._spans = spans
            return self._census
