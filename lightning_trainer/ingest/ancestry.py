"""Who a span belongs to: its own attributes, else those of the nearest span above it that has them.

Linear in the number of spans and without recursion: each span is resolved once, a chain from its top down. A parent
that is not among the spans, or a chain that runs in a circle, ends the search.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.dialects.values import text
from lightning_trainer.types import Span

SpanKey = tuple[str, str]
"""(trace id, span id)"""


@dataclass(frozen=True, slots=True)
class Identity:
    """None where neither the span nor anything above it says."""

    agent: str | None = None
    rollout_id: str | None = None
    attempt_id: str | None = None
    agent_source: str | None = None
    """How the agent was recognised, as whoever gives it this name says; None where nobody says."""

    @property
    def complete(self) -> bool:
        """Whether nothing above can add to it."""
        return self.agent is not None and self.rollout_id is not None and self.attempt_id is not None

    def else_from(self, other: "Identity") -> "Identity":
        """Fill what is missing, unless ``other`` is of another rollout or attempt: then it says nothing of this one."""
        if _differ(self.rollout_id, other.rollout_id) or _differ(self.attempt_id, other.attempt_id):
            return self
        agent = self.agent or other.agent
        return Identity(
            agent=agent,
            rollout_id=self.rollout_id or other.rollout_id,
            attempt_id=self.attempt_id or other.attempt_id,
            agent_source=self.agent_source or (other.agent_source if other.agent == agent else None),
        )


def _differ(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other


def key_of(span: Span) -> SpanKey:
    return (span.trace_id, span.span_id)


def resolve_identities(spans: Mapping[SpanKey, Span]) -> dict[SpanKey, Identity]:
    """Return the identity of every span."""
    resolved: dict[SpanKey, Identity] = {}
    named: dict[tuple, Identity] = {}
    for start, span in spans.items():
        if start in resolved:
            continue
        own = _own(span, named)
        if own.complete:
            resolved[start] = own
            continue
        chain: dict[SpanKey, Identity] = {start: own}
        key = _parent(span)
        while key is not None and key in spans and key not in resolved and key not in chain:
            chain[key] = _own(spans[key], named)
            key = _parent(spans[key])
        above = resolved.get(key, _NOBODY) if key is not None else _NOBODY
        for below in reversed(chain):
            above = chain[below].else_from(above)
            resolved[below] = above
    return resolved


_NOBODY = Identity()


def _parent(span: Span) -> SpanKey | None:
    return None if span.parent_span_id is None else (span.trace_id, span.parent_span_id)


def _own(span: Span, named: dict[tuple, Identity]) -> Identity:
    """What the span itself says; equal ones are one object in ``named``, since few are different."""
    naming = dialect_of(span).naming(span)
    agent, source = (None, None) if naming is None else (naming.agent, naming.source)
    said = (agent, text(span, semconv.ROLLOUT_ID), text(span, semconv.ATTEMPT_ID), source)
    identity = named.get(said)
    if identity is None:
        identity = named[said] = Identity(*said)
    return identity


def unique(spans: Sequence[Span]) -> dict[SpanKey, Span]:
    """Return the spans by key, in an order that does not depend on the order of delivery."""
    return {key_of(span): span for span in sorted(spans, key=lambda span: (span.start_ns, *key_of(span)))}
