"""The gateway's records before they are stored: texts redacted by the daemon's own rules.

A client redacts what it records itself; what passes through the gateway is seen by nobody before. Token ids stay: they
are what is trained on, and they spell the text.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from lightning_instrumentation import semconv
from lightning_instrumentation.redaction.rules import RedactionError, Redactor

from lightning_trainer.types import AttributeValue, Span, SpanSink

logger = logging.getLogger(__name__)


class RedactingSink:
    """A sink in front of the store's. What cannot be redacted is left out of the span; the rest is stored."""

    def __init__(self, sink: SpanSink, redactor: Redactor) -> None:
        self._sink = sink
        self._redactor = redactor
        self.left_out = 0
        """Texts that a rule failed on."""

    async def append(self, spans: Sequence[Span]) -> int:
        return await self._sink.append([self._redacted(span) for span in spans])

    def _redacted(self, span: Span) -> Span:
        attributes: dict[str, AttributeValue] = {}
        for name, value in span.attributes.items():
            if name in semconv.CONTENT_KEYS and isinstance(value, str):
                value = self._allowed(value, name)
                if value is None:
                    continue
            attributes[name] = value
        message = self._allowed(span.status_message, "status") or ""
        return replace(span, attributes=attributes, status_message=message)

    def _allowed(self, text: str, name: str) -> str | None:
        try:
            return self._redactor(text)
        except RedactionError as error:
            self.left_out += 1
            logger.error("%s of a gateway record is left out: %s", name, error)
            return None
