"""Takes what must not be recorded out of a span, in its encoded form: the last step before it is written.

Only texts are touched, never names, ids or token ids. What cannot be redacted is left out and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.redaction.rules import RedactionError, Redactor

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Editor:
    """One a process; thread-safe, since it keeps nothing."""

    def __init__(self, redactor: Redactor, *, capture_content: bool) -> None:
        self._redactor = redactor
        self._capture_content = capture_content

    def edit(self, span: Span) -> None:
        self._edit_attributes(span.attributes)
        for event in span.events:
            self._edit_attributes(event.attributes)
        if span.status.message:
            span.status.message = self._allowed(span.status.message) or ""

    def _edit_attributes(self, attributes: Any) -> None:
        forbidden = [
            position
            for position, attribute in enumerate(attributes)
            if attribute.key in semconv.CONTENT_KEYS and not self._edit_value(attribute.value)
        ]
        for position in reversed(forbidden):
            del attributes[position]

    def _edit_value(self, value: AnyValue) -> bool:
        """Return False where nothing of it may be recorded."""
        kind = value.WhichOneof("value")
        if kind == "string_value":
            text = value.string_value
            allowed = self._allowed(text)
            if allowed is not None and allowed is not text:
                value.string_value = allowed
            return allowed is not None
        if not self._capture_content:
            return False
        if kind == "array_value":
            return all(self._edit_value(one) for one in value.array_value.values)
        if kind == "kvlist_value":
            return all(self._edit_value(one.value) for one in value.kvlist_value.values)
        return True

    def _allowed(self, text: str) -> str | None:
        if not self._capture_content:
            return None
        try:
            return self._redactor(text)
        except RedactionError as error:
            failures.note("redaction", "a text could not be redacted and is left out of its span", error=error)
            return None
