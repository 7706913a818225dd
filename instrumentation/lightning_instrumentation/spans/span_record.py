"""A span as plain values: the form in which every span is exported, and in which internal spans are kept from the
start.

The SDK protects a span against any code that may hold it, with locks, copies, and checks of each value. Spans of
agents, tools, and rollouts are the SDK's, and do not change after they end: a copy is exported, which redaction may
change. A model call's span is never exposed, so it is a record from the start, for a quarter of the SDK's cost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


@dataclass(frozen=True, slots=True)
class Event:
    """An event on a span."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any]


@dataclass(slots=True)
class SpanRecord:
    """A span as plain values."""

    name: str
    trace_id: int
    span_id: int
    parent: SpanContext | None
    kind: SpanKind
    attributes: dict[str, Any]
    events: list[Event]
    links: Sequence[Link]
    status: StatusCode
    status_message: str
    start_ns: int
    end_ns: int = 0
    """Nanoseconds since 1970; 0 while the span is open."""
    shared: tuple[Mapping[str, Any], ...] = ()
    """Attributes that spans have in common, encoded once for all: each mapping is the same object for each of them,
    never changes, and contains no content. ``attributes`` take precedence."""

    def get(self, key: str) -> Any:
        """Return an attribute, the span's own before shared ones; None if there is none."""
        return next((known[key] for known in (self.attributes, *self.shared) if key in known), None)

    def set_attribute(self, key: str, value: Any) -> None:
        """Set an attribute; an earlier value is replaced."""
        self.attributes[key] = value

    def add_event(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Add an event that happens now."""
        self.events.append(Event(name, time.time_ns(), attributes))

    def set_status(self, status: Status) -> None:
        """Set the status and its message."""
        self.status, self.status_message = status.status_code, status.description or ""

    @classmethod
    def of(cls, span: ReadableSpan) -> SpanRecord:
        """Copy a span of the SDK.

        Raises:
            ValueError: the span has not ended.
        """
        context = span.get_span_context()
        if context is None or span.start_time is None or span.end_time is None:
            raise ValueError(f"the span {span.name!r} has not ended")
        return cls(
            span.name,
            context.trace_id,
            context.span_id,
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
    # The SDK's attributes are a view that copies itself in one go; read as a mapping, it locks and looks up key after
    # key.
    copy = getattr(attributes, "copy", None)
    return dict(copy() if copy is not None else attributes or {})
