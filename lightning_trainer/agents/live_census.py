"""The census of a store that a daemon is writing: counted on demand if something new has arrived."""

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
"""Number of newest spans in a daemon's census, which includes recently active agents."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Seen:
    """The census of each agent, and what each program could not capture."""

    agents: Sequence[AgentCensus] = ()
    losses: Sequence[ProgramLosses] = ()
    unread: Mapping[str, int] = field(default_factory=dict)
    """Model-call spans in formats that are not read, by the instrumentation that wrote them."""
    spans_read: int = 0
    spans_held: int = 0


def see(connection: Connection, *, newest: int | None = None) -> Seen:
    """Count the contents of a store: its newest spans, or all."""
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
    """The store's operations that the census uses."""

    async def last_span(self) -> int:
        """Return the number of the newest span; 0 if there is none."""
        ...

    async def scan(self, query: Callable[[Connection], Result]) -> Result:
        """Run a query on one snapshot, and return its result."""
        ...


class LiveCensus:
    """The census of the newest spans, on one snapshot."""

    def __init__(self, store: ScannableStore) -> None:
        self._counted = Lately(lambda: store.scan(lambda connection: see(connection, newest=NEWEST)), store.last_span)

    async def get(self) -> Seen:
        """Return the newest count, or a recent one if a new one takes long.

        Raises:
            StoreError: the store cannot be read.
        """
        return await self._counted.get()
