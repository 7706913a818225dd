"""The census of a store that a daemon is writing: counted when it is asked for and something came."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from lightning_instrumentation import semconv

from lightning_trainer.agents.census import AgentCensus, count_agents, slim
from lightning_trainer.agents.uncaptured import ProgramLosses, count_losses
from lightning_trainer.ingest.dialects.registry import is_unread_call
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.lately import Lately
from lightning_trainer.store.scan import named, traces
from lightning_trainer.types import Span

NEWEST = 5_000
"""Spans that a daemon's census looks at: agents that have called lately are among them."""
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
    """Of the newest spans, on one snapshot."""

    def __init__(self, store: ScannableStore) -> None:
        self._counted = Lately(lambda: store.scan(lambda connection: see(connection, newest=NEWEST)), store.last_span)

    async def get(self) -> Seen:
        """Return the newest count; one of a moment ago where a new one takes long.

        Raises:
            StoreError: the store cannot be read.
        """
        return await self._counted.get()
