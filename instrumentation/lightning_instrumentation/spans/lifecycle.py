"""The life of one of our spans, each step guarded: a failure here never reaches the agent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning_instrumentation import semconv
from lightning_instrumentation.delivery.deferred import defer, do_waiting
from lightning_instrumentation.failures import guarded, text_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanKind

    from lightning_instrumentation.spans.span_record import SpanRecord
    from lightning_instrumentation.spans.tracing import Tracer

_LONGEST_MESSAGE = 2000
_CONTROL_FLOW = frozenset(
    {
        ("langgraph.errors", "GraphBubbleUp"),  # leaves a node, to wait for a person (``interrupt``) or to hand over
        ("pydantic_ai.exceptions", "ApprovalRequired"),
        ("pydantic_ai.exceptions", "CallDeferred"),  # the tool's result comes later, from elsewhere
    }
)


def begin(tracer: Tracer, name: str, attributes: Mapping[str, Any], **options: Any) -> Span | None:
    """Start a span of the SDK; None if that fails."""
    do_waiting()
    return guarded("span-start", tracer.start, name, attributes, **options)


def end(span: Span | None, error: BaseException | None = None) -> None:
    """End a span from ``begin``, with an error if there was one."""
    do_waiting()
    if span is None:
        return
    if error is not None and not _is_control_flow(error):
        guarded("span-error", mark_error, span, error)
    guarded("span-end", span.end)


def _is_control_flow(error: BaseException) -> bool:
    """Whether an exception leaves a framework's work on purpose, not because of a failure."""
    return any((kind.__module__, kind.__name__) in _CONTROL_FLOW for kind in type(error).__mro__)


def open(
    tracer: Tracer, name: str, attributes: dict[str, Any], shared: Mapping[str, Any], kind: SpanKind
) -> SpanRecord | None:
    """Start a span that is never exposed outside this client; see ``Tracer.open``."""
    do_waiting()
    return guarded("span-start", tracer.open, name, attributes, shared, kind)


def close(tracer: Tracer, span: SpanRecord, *, end_ns: int | None = None) -> None:
    """End a span from ``open``."""
    do_waiting()
    tracer.close(span, end_ns)


def end_soon(span: Span | None) -> None:
    """End a span later, but with the current time: for code that the garbage collector may run."""
    if span is not None:
        defer(span.end, time.time_ns())


def mark_error(span: Span | SpanRecord, error: BaseException, *, secret: str | None = None) -> None:
    """Record an exception; ``secret`` is removed from its message (servers often quote keys back)."""
    from opentelemetry.trace import Status, StatusCode

    message = text_of(error)[:_LONGEST_MESSAGE]
    if secret:
        message = message.replace(secret, "[secret]")
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute(semconv.ERROR_TYPE, name)
    span.add_event("exception", {"exception.type": name, "exception.message": message})
    span.set_status(Status(StatusCode.ERROR, message))


def mark_failed(span: Span | SpanRecord, error_type: str, message: str) -> None:
    """Record a failure that was reported and not raised."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute(semconv.ERROR_TYPE, error_type)
    span.set_status(Status(StatusCode.ERROR, message[:_LONGEST_MESSAGE]))
