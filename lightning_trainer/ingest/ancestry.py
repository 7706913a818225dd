"""The identity of a span: from its own attributes, else from the nearest ancestor that has them.

Linear in the number of spans and without recursion: each span is resolved once, on demand; a chain of ancestors is
resolved from its top down. The search ends at a parent that is not among the spans, and at a cycle.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects.genai import paired, stream_part
from lightning_trainer.ingest.dialects.lightning import is_ours
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.dialects.values import text
from lightning_trainer.types import Span

SpanKey = tuple[str, str]
"""(trace id, span id)"""


class Identity(NamedTuple):
    """Agent, rollout, and attempt of a span; each is None if neither the span nor an ancestor says."""

    agent: str | None = None
    rollout_id: str | None = None
    attempt_id: str | None = None
    agent_source: str | None = None
    """How the agent was recognized, by the source of its name; None if unknown."""

    @property
    def complete(self) -> bool:
        """Whether no ancestor can add to it."""
        return self.agent is not None and self.rollout_id is not None and self.attempt_id is not None

    def else_from(self, other: "Identity") -> "Identity":
        """Return this identity with missing fields filled in from ``other``, unless ``other`` is of another rollout or
        attempt and so says nothing about this one."""
        return _filled(self, other)


@lru_cache(maxsize=1024)  # there are few distinct values, shared by many spans
def _filled(own: Identity, other: Identity) -> Identity:
    if _differ(own.rollout_id, other.rollout_id) or _differ(own.attempt_id, other.attempt_id):
        return own
    agent = own.agent or other.agent
    return Identity(
        agent=agent,
        rollout_id=own.rollout_id or other.rollout_id,
        attempt_id=own.attempt_id or other.attempt_id,
        agent_source=own.agent_source or (other.agent_source if other.agent == agent else None),
    )


def _differ(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other


key_of: Callable[[Span], SpanKey] = attrgetter("trace_id", "span_id")


def resolve_identities(spans: Mapping[SpanKey, Span]) -> Mapping[SpanKey, Identity]:
    """Return the identity of every span, as a mapping that computes entries on demand."""
    return _Identities(spans)


class _Identities(dict[SpanKey, Identity]):
    """A cache of the identities that were requested, and of their ancestors'."""

    def __init__(self, spans: Mapping[SpanKey, Span]) -> None:
        self._spans = spans
        self._named: dict[tuple, Identity] = {}

    def __missing__(self, start: SpanKey) -> Identity:
        own = self._own(self._spans[start])
        if own.complete:
            self[start] = own
            return own
        chain: dict[SpanKey, Identity] = {start: own}
        key = _parent(self._spans[start])
        while key is not None and key in self._spans and key not in self and key not in chain:
            chain[key] = self._own(self._spans[key])
            key = _parent(self._spans[key])
        above = self.get(key, _NOBODY) if key is not None else _NOBODY
        for below in reversed(chain):
            above = self[below] = chain[below].else_from(above)
        return above

    def _own(self, span: Span) -> Identity:
        """Return the identity from the span's own attributes; equal ones are one object, because few are distinct."""
        naming = dialect_of(span).naming(span)
        agent, source = (None, None) if naming is None else (naming.agent, naming.source)
        said = (agent, text(span, semconv.ROLLOUT_ID), text(span, semconv.ATTEMPT_ID), source)
        identity = self._named.get(said)
        if identity is None:
            identity = self._named[said] = Identity(*said)
        return identity


_NOBODY = Identity()


def process_agent(span: Span) -> Identity:
    """Return the agent that a foreign program's resource names (``OTEL_RESOURCE_ATTRIBUTES``), for use if no span
    names one."""
    agent = span.resource.get(semconv.AGENT_NAME)
    if not isinstance(agent, str) or not agent or is_ours(span):
        return _NOBODY
    return Identity(agent=agent, agent_source="resource")


def _parent(span: Span) -> SpanKey | None:
    return None if span.parent_span_id is None else (span.trace_id, span.parent_span_id)


def unique(spans: Sequence[Span]) -> dict[SpanKey, Span]:
    """Return the spans by key: trace by trace, within each trace by start time, whatever the order of delivery.

    This order is for locality: spans of a trace are read together, so they should be together in memory. In order of
    time, the traces of concurrent rollouts would interleave, and every later stage would wait for memory.
    """
    ordered = sorted(spans, key=attrgetter("trace_id", "start_ns", "span_id"))
    return dict(zip(map(key_of, ordered), ordered, strict=True))


def outer_of(span: Span) -> SpanKey | None:
    """Return the span of another tracer that encloses a model call of our client; None if there is none."""
    trace_id, _, span_id = (text(span, semconv.OUTER_SPAN) or "").partition("-")
    return (trace_id, span_id) if span_id else None


def enclosing(spans: Mapping[SpanKey, Span], records: Collection[SpanKey]) -> dict[SpanKey, SpanKey]:
    """Return for each span the innermost record of a call among itself and its ancestors; absent if there is none."""
    found: dict[SpanKey, SpanKey] = {key: key for key in records}
    beyond: set[SpanKey] = set()
    for start in spans:
        chain: list[SpanKey] = []
        key: SpanKey | None = start
        while key is not None and key in spans and key not in found and key not in beyond:
            beyond.add(key)  # also ends a cycle
            chain.append(key)
            key = _parent(spans[key])
        if key in found:
            beyond.difference_update(chain)
            found.update(dict.fromkeys(chain, found[key]))
    parts = [part for span in spans.values() if (part := stream_part(span)) is not None]
    found.update((request.span, log.span) for request, log in paired(sorted(parts)) if log.span in found)
    return found


def nearest_above(spans: Mapping[SpanKey, Span], wanted: Collection[SpanKey]) -> dict[SpanKey, SpanKey | None]:
    """Return for each span its nearest wanted ancestor; each chain is walked once, and the walk ends at a cycle."""
    above: dict[SpanKey, SpanKey | None] = {}
    for start in wanted:
        chain: list[SpanKey] = []
        seen: set[SpanKey] = set()
        key: SpanKey = start
        while key in spans and key not in above and key not in seen:
            chain.append(key)
            seen.add(key)
            parent = spans[key].parent_span_id
            if parent is None:
                break
            key = (key[0], parent)
        for below in reversed(chain):
            parent = spans[below].parent_span_id
            parent_key = None if parent is None else (below[0], parent)
            above[below] = parent_key if parent_key in wanted else above.get(parent_key) if parent_key else None
    return above
