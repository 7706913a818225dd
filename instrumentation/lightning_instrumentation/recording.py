"""A span while it is recorded: OpenTelemetry's interface over plain attributes.

The SDK's own span copies and checks every value, asks a sampler and counts against limits; ours have none of these,
since only our own code makes them. Changes after its end are ignored, as the interface demands.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from lightning_instrumentation import semconv


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    time_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


class RecordingSpan(Span):
    def __init__(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: dict[str, Any],
        links: Sequence[Link],
        start_ns: int,
        on_end: Callable[[RecordingSpan], None],
    ) -> None:
        self.name = name
        self.context = context
        self.parent = parent
        self.kind = kind
        self.attributes = attributes
        self.links = list(links)
        self.events: list[Event] = []
        self.status = StatusCode.UNSET
        self.status_message = ""
        self.start_ns = start_ns
        self.end_ns: int | None = None
        self._on_end = on_end

    def end(self, end_time: int | None = None) -> None:
        if self.end_ns is None:
            self.end_ns = time.time_ns() if end_time is None else end_time
            self._on_end(self)

    def get_span_context(self) -> SpanContext:
        return self.context

    def is_recording(self) -> bool:
        return self.end_ns is None

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        if self.end_ns is None:
            self.attributes.update(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        if self.end_ns is None:
            self.attributes[key] = value

    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None) -> None:
        if self.end_ns is None:
            self.events.append(Event(name, time.time_ns() if timestamp is None else timestamp, dict(attributes or {})))

    def add_link(self, context: SpanContext, attributes: Mapping[str, Any] | None = None) -> None:
        if self.end_ns is None and context.is_valid:
            self.links.append(Link(context, attributes))

    def update_name(self, name: str) -> None:
        if self.end_ns is None:
            self.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """``OK`` is final, and ``UNSET`` changes nothing."""
        if isinstance(status, Status):
            status, description = status.status_code, status.description
        if self.end_ns is None and self.status is not StatusCode.OK and status is not StatusCode.UNSET:
            self.status, self.status_message = status, description or ""

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        kind = type(exception)
        said = {
            "exception.type": kind.__qualname__
            if kind.__module__ == "builtins"
            else f"{kind.__module__}.{kind.__qualname__}",
            semconv.EXCEPTION_MESSAGE: str(exception),
            semconv.EXCEPTION_STACKTRACE: "".join(traceback.format_exception(exception)),
        }
        self.add_event("exception", {**said, **(attributes or {})}, timestamp)
