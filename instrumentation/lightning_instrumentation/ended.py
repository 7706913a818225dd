"""A span that has ended, on its way out: what the SDK recorded, in plain values that redaction may change.

The SDK's span stays as it is: the user's code may still hold it, and other threads may read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    time_ns: int
    attributes: Mapping[str, Any]


@dataclass(slots=True)
class EndedSpan:
    name: str
    context: SpanContext
    parent: SpanContext | None
    kind: SpanKind
    attributes: dict[str, Any]
    events: list[Event]
    links: Sequence[Link]
    status: StatusCode
    status_message: str
    start_ns: int
    end_ns: int

    @classmethod
    def of(cls, span: ReadableSpan) -> EndedSpan:
        """Copy what the SDK recorded.

        Raises:
            ValueError: the span has not ended.
        """
        context = span.get_span_context()
        if context is None or span.start_time is None or span.end_time is None:
            raise ValueError(f"the span {span.name!r} has not ended")
        return cls(
            span.name,
            context,
            span.parent,
            span.kind,
            _copied(span.attributes),
            [Event(event.name, event.timestamp, event.attributes or {}) for event in span.events],
            span.links,
            span.status.status_code,
            span.status.description or "",
            span.start_time,
            span.end_time,
        )


def _copied(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    # What the SDK hands out (a view of its own mapping) copies itself in one go; read as a mapping, it locks and looks
    # up key after key.
    copy = getattr(attributes, "copy", None)
    return dict(copy() if copy is not None else attributes or {})
