"""Redaction before storage, or before a dataset is made: the daemon's rules for every text in every span.

Our own client redacts by its own rules before anything leaves its process; other tracers, the gateway's records,
rewards, ends, and judges do not. Names, ids, roles, types, and numbers are kept, because they identify a span.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast

from lightning_instrumentation import semconv
from lightning_instrumentation.redaction.rules import RedactionError, Redactor, redactor

from lightning_trainer.config import DaemonConfig
from lightning_trainer.ingest.dialects.tokens import FOREIGN_NAMES
from lightning_trainer.types import AttributeValue, Span, SpanEvent, SpanSink

logger = logging.getLogger(__name__)

_OURS = frozenset((semconv.CLIENT_SCOPE, semconv.GATEWAY_SCOPE, semconv.GATEWAY_NOTE_SCOPE))
_FEW = 4
"""Up to this many spans are redacted inline; more in a thread, so that the event loop is not blocked."""
_STRUCTURE = frozenset(
    {
        *("role", "type", "kind", "id", "name", "model", "system", "provider", "operation", "format", "language"),
        *("version", "finish_reason", "finish_reasons"),
    }
)
_TOKENS = (".token_ids", ".logprobs", ".support", ".routed_experts")


class SpanRedactor:
    """Redacts the texts of spans and of their resources. A text that cannot be redacted is left out.

    Args:
        drop_tokens: if a secret was found in a call's texts, leave out its token ids and what belongs to them, because
            they spell the text. Such a call is then text only, and is not trained.
    """

    def __init__(self, redactor: Redactor, *, drop_tokens: bool = False) -> None:
        self._redactor = redactor
        self._drop_tokens = drop_tokens
        self.left_out = 0
        """Number of texts on which a rule failed."""

    @classmethod
    def of(cls, config: DaemonConfig) -> "SpanRedactor":
        """Return a redactor with the rules of a configuration."""
        return cls(redactor(config.redact), drop_tokens=config.redact_tokens == "drop")

    def __call__(self, spans: Sequence[Span]) -> list[Span]:
        """Return the spans without secrets; a span that has none stays as it is, so that its original bytes are stored.

        Spans that share their resource object share the redacted one.
        """
        resources = {id(span.resource): span.resource for span in spans}
        allowed = {key: self._allowed(resource, False) for key, resource in resources.items()}
        return [self._span(span, allowed[id(span.resource)]) for span in spans]

    def _span(self, span: Span, resource: Mapping[str, AttributeValue]) -> Span:
        ours = span.scope in _OURS
        attributes = self._allowed(span.attributes, ours)
        events = tuple(self._event(event, ours) for event in span.events)
        message = self._text(span.status_message, "status") or "" if span.status_message else ""
        same = attributes is span.attributes and message == span.status_message
        if same and all(map(lambda one, other: one is other, events, span.events)):
            return span if resource is span.resource else _with_resource(span, resource)
        if self._drop_tokens:
            attributes = {name: value for name, value in attributes.items() if not _is_of_tokens(name)}
        return replace(span, attributes=attributes, events=events, status_message=message, resource=resource)

    def _event(self, event: SpanEvent, ours: bool) -> SpanEvent:
        attributes = self._allowed(event.attributes, ours)
        return event if attributes is event.attributes else replace(event, attributes=attributes)

    def _allowed(self, attributes: Mapping[str, AttributeValue], ours: bool) -> Mapping[str, AttributeValue]:
        """Return the attributes with their texts redacted; the same object if nothing changed."""
        changed: dict[str, AttributeValue | None] = {}
        for name, value in attributes.items():
            if not _is_text(name, ours):
                continue
            allowed = self._value(value, name)
            if allowed is not value:
                changed[name] = allowed
        if not changed:
            return attributes
        return {name: value for name, value in {**attributes, **changed}.items() if value is not None}

    def _value(self, value: AttributeValue, name: str) -> AttributeValue | None:
        if isinstance(value, str):
            return self._text(value, name)
        if isinstance(value, tuple):
            allowed = cast(AttributeValue, tuple(self._text(o, name) or "" if isinstance(o, str) else o for o in value))
            return value if allowed == value else allowed
        return value

    def _text(self, text: str, name: str) -> str | None:
        try:
            return self._redactor(text, payload=name in semconv.PAYLOAD_KEYS)
        except RedactionError as error:
            self.left_out += 1
            logger.error("%s of a span is left out: %s", name[:64], error)
            return None


class RedactingSink:
    """A sink in front of the store's, so that everything that is stored was redacted."""

    def __init__(self, sink: SpanSink, redacted: SpanRedactor) -> None:
        self._sink = sink
        self._redacted = redacted

    @classmethod
    def of(cls, config: DaemonConfig, sink: SpanSink) -> "RedactingSink":
        """Return the sink with the rules of a configuration."""
        return cls(sink, SpanRedactor.of(config))

    async def append(self, spans: Sequence[Span]) -> int:
        """Redact the spans and pass them on. Return how many of them were new, as the sink behind this one does."""
        if len(spans) <= _FEW:
            return await self._sink.append(self._redacted(spans))
        return await self._sink.append(await asyncio.to_thread(self._redacted, spans))


def _with_resource(span: Span, resource: Mapping[str, AttributeValue]) -> Span:
    moved = replace(span, resource=resource)
    object.__setattr__(moved, "received", span.received)  # a resource is not part of its span's bytes
    return moved


def _is_of_tokens(name: str) -> bool:
    return name.endswith(_TOKENS) or name in FOREIGN_NAMES


@lru_cache(maxsize=4096)
def _is_text(name: str, ours: bool) -> bool:
    """Whether the attribute is text: content always is, the rest of our own spans' conventions never; for any other
    attribute, the last word of its name decides."""
    if name in semconv.CONTENT_KEYS or name.startswith(semconv.METADATA):
        return True
    if ours and name.startswith(("lightning.", "gen_ai.")):
        return False
    last = name.rpartition(".")[2]
    return last not in _STRUCTURE and not last.endswith("_id")
