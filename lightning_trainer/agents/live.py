"""The census of a store that a daemon is writing: counted when somebody asks and something was stored since."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Protocol

from lightning_instrumentation import semconv

from lightning_trainer.agents.census import AgentCensus, count_agents, slim
from lightning_trainer.agents.losses import ProgramLosses, count_losses
from lightning_trainer.store.counts import StoreCounts
from lightning_trainer.store.scan import named, traces

Seen = tuple[Sequence[AgentCensus], Sequence[ProgramLosses]]
"""What was seen of each agent, and what each program could not capture."""


def see(connection: sqlite3.Connection) -> Seen:
    """Count all that is in a store."""
    return count_agents(traces(connection, slim)), count_losses(named(connection, semconv.LOSSES_SPAN))


class ScannableStore(Protocol):
    async def counts(self) -> StoreCounts: ...

    async def scan(self, query: Callable) -> Seen: ...


class LiveCensus:
    """One count at a time, however many ask; reading happens in a thread of the store's, on one snapshot."""

    def __init__(self, store: ScannableStore) -> None:
        self._store = store
        self._counting = asyncio.Lock()
        self._spans = -1
        self._seen: Seen = (), ()

    async def get(self) -> Seen:
        async with self._counting:
            spans = (await self._store.counts())["spans"]
            if spans != self._spans:
                self._seen = await self._store.scan(see)
                self._spans = spans
            return self._seen
