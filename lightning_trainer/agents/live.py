"""The census of a store that a daemon is writing: of its newest spans, counted when somebody asks and something came.

Whoever asks gets an answer soon: while a count takes longer than that, the one before it is the answer.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from lightning_instrumentation import semconv

from lightning_trainer.agents.census import AgentCensus, count_agents, slim
from lightning_trainer.agents.uncaptured import ProgramLosses, count_losses
from lightning_trainer.ingest.dialects.registry import is_unread_call
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.scan import named, traces
from lightning_trainer.types import Span

NEWEST = 5_000
"""Spans that a daemon's census looks at: agents that have called lately are among them."""
_PATIENCE_S = 0.1
_SHARE = 0.02
"""Of the time, that may be spent on counting."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of each agent, and what each program could not capture."""

    agents: Sequence[AgentCensus] = ()
    losses: Sequence[ProgramLosses] = ()
    unread: Mapping[str, int] = field(default_factory=dict)
    """Spans of model calls in a form that is not read, by the instrumentation that wrote them."""
    spans_read: int = 0
    spans_held: int = 0


def see(connection: Connection, *, newest: int | None = None) -> Seen:
    """Count what is in a store: of its newest spans, or of all."""
    held = connection.execute("SELECT count(*) FROM spans" if newest is None else _HELD).fetchone()[0]
    unread: Counter[str] = Counter()

    def noted(span: Span) -> Span:
        if is_unread_call(span):
            unread[span.scope] += 1
        return slim(span)

    return Seen(
        count_agents(traces(connection, noted, newest=newest)),
        count_losses(named(connection, semconv.LOSSES_SPAN, newest=newest)),
        unread,
        spans_read=held if newest is None else min(held, newest),
        spans_held=held,
    )


_HELD = "SELECT coalesce((SELECT value FROM totals WHERE name = 'spans'), (SELECT count(*) FROM spans))"


class ScannableStore(Protocol):
    async def last_span(self) -> int: ...

    async def scan(self, query: Callable[[Connection], Result]) -> Result: ...


class LiveCensus:
    """One count at a time, however many ask; reading happens in a thread of the store's, on one snapshot."""

    def __init__(self, store: ScannableStore) -> None:
        self._store = store
        self._counting: asyncio.Task[None] | None = None
        self._last_span = -1
        self._took_s = 0.0
        self._counted_at = 0.0
        self._seen: Seen | None = None

    async def get(self) -> Seen:
        """Return the newest count; one of a moment ago where a new one takes long.

        Raises:
            StoreError: the store cannot be read.
        """
        if self._counting is None or self._counting.done():
            rested = time.monotonic() - self._counted_at >= self._took_s / _SHARE or self._took_s < _PATIENCE_S
            if not rested or await self._store.last_span() == self._last_span:
                return self._seen or Seen()
            self._counting = asyncio.create_task(self._count(), name="census")
        await asyncio.wait({self._counting}, timeout=None if self._seen is None else _PATIENCE_S)
        if self._counting.done():
            self._counting.result()
        return self._seen or Seen()

    async def _count(self) -> None:
        began = time.monotonic()
        last = await self._store.last_span()
        self._seen = await self._store.scan(lambda connection: see(connection, newest=NEWEST))
        self._last_span, self._counted_at = last, time.monotonic()
        self._took_s = self._counted_at - began
