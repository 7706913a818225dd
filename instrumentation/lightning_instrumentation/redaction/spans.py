"""Redacts a span: the last step before it is encoded and written.

Only texts are changed, never names, ids, or token ids. A text that cannot be redacted is left out and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.redaction.rules import RedactionError, Redactor

if TYPE_CHECKING:
    from lightning_instrumentation.spans.span_record import SpanRecord


class _ForbiddenError(Exception):
    """Nothing of a value may be recorded."""


class Editor:
    """Redacts spans; one per process, stateless and so thread-safe."""

    def __init__(self, redactor: Redactor, *, capture_content: bool) -> None:
        self._redactor = redactor
        self._capture_content = capture_content

    def edit(self, span: SpanRecord) -> None:
        """Redact the span in place: attributes, events, and status message."""
        self._edit(span.attributes)
        if span.events:
            span.events = [replace(event, attributes=self._edited(event.attributes)) for event in span.events]
        if span.status_message:
            try:
                span.status_message = self._text(span.status_message)
            except _ForbiddenError:
                span.status_message = ""

    def leaves(self, text: str) -> bool:
        """Whether a text may be recorded, and would be recorded unchanged."""
        try:
            return self._text(text) == text
        except _ForbiddenError:
            return False

    def _edited(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        edited = dict(attributes)
        self._edit(edited)
        return edited

    def _edit(self, attributes: dict[str, Any]) -> None:
        for key in semconv.CONTENT_KEYS.intersection(attributes):
            try:
                attributes[key] = self._value(attributes[key], payload=key in semconv.PAYLOAD_KEYS)
            except _ForbiddenError:
                del attributes[key]

    def _value(self, value: Any, *, payload: bool) -> Any:
        if isinstance(value, str):
            return self._text(value, payload=payload)
        if not self._capture_content:
            raise _ForbiddenError
        if isinstance(value, Mapping):
            return {key: self._value(one, payload=payload) for key, one in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._value(one, payload=payload) for one in value]
        return value

    def _text(self, text: str, *, payload: bool = False) -> str:
        if not self._capture_content:
            raise _ForbiddenError
        try:
            return self._redactor(text, payload=payload)
        except RedactionError as error:
            failures.note("redaction", "a text could not be redacted and is left out of its span", error=error)
            raise _ForbiddenError from error
