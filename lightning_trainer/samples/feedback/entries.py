"""One piece of feedback, as it is kept in spans: an evaluation (``gen_ai.evaluation.result``) that names its source.

All feedback becomes such a span, whether it comes from the client's ``lt.feedback``, ``POST /lightning/feedback``,
another tracer's OTLP, or Langfuse's score API, so it is as durable, idempotent, and backed up as every span.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lightning_instrumentation import semconv

from lightning_trainer.types import AttributeValue, Span, SpanEvent

SCOPE = "lightning.feedback"
"""Scope of the spans that the daemon itself makes: of feedback that came by HTTP, and of rewards made from feedback."""
LONGEST_TEXT = 65_536
"""Limit in characters on an edited answer or a comment."""
LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class Subject:
    """What feedback is about, as its source named it; at least one of the ids."""

    rollout_id: str | None = None
    attempt_id: str | None = None
    response_id: str | None = None
    trace_id: str | None = None

    @property
    def named(self) -> bool:
        """Whether at least one id is given."""
        return any((self.rollout_id, self.attempt_id, self.response_id, self.trace_id))

    def attributes(self) -> dict[str, AttributeValue]:
        """Return the ids as a span's attributes."""
        named = {
            semconv.ROLLOUT_ID: self.rollout_id,
            semconv.ATTEMPT_ID: self.attempt_id,
            semconv.RESPONSE_ID: self.response_id,
            semconv.FEEDBACK_TRACE: self.trace_id,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of feedback."""

    trace_id: str
    span_id: str
    """With the trace id: the span that brought it."""
    source: str
    kind: str
    """``person`` or ``system``."""
    name: str
    subject: Subject
    value: float | None
    """From 0 to 1; None for an edit or a comment alone, and if ``taken_back``."""
    taken_back: bool
    correction: str | None
    comment: str | None
    given_ns: int

    @property
    def key(self) -> tuple[str, str]:
        """Return the trace id and span id, which identify its event."""
        return self.trace_id, self.span_id


def is_feedback(attributes: Mapping[str, AttributeValue]) -> bool:
    """Whether an evaluation with these attributes is feedback, and so not a reward by itself."""
    return semconv.FEEDBACK_SOURCE in attributes


def entries_of(span: Span) -> list[Entry]:
    """Return a span's feedback, at most one entry; what cannot be read is left out, since anyone may have sent it."""
    found = []
    for event in span.events:
        if event.name != semconv.EVALUATION_EVENT:
            continue
        told = {**span.attributes, **event.attributes}
        source, name = _text(told.get(semconv.FEEDBACK_SOURCE)), _text(told.get(semconv.EVALUATION_NAME))
        subject = _subject(span, told)
        if source is None or name is None or not subject.named or max(len(source), len(name)) > LONGEST_NAME:
            continue
        score = told.get(semconv.EVALUATION_SCORE)
        value = float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None
        correction, comment = (
            _text(event.attributes.get(key)) for key in (semconv.FEEDBACK_CORRECTION, semconv.EVALUATION_EXPLANATION)
        )
        found.append(
            Entry(
                trace_id=span.trace_id,
                span_id=span.span_id,
                source=source,
                kind="system" if told.get(semconv.FEEDBACK_KIND) == "system" else "person",
                name=name,
                subject=subject,
                value=value if value is not None and 0.0 <= value <= 1.0 else None,
                taken_back=told.get(semconv.FEEDBACK_TAKEN_BACK) is True,
                correction=None if correction is None else correction[:LONGEST_TEXT],
                comment=comment,
                given_ns=event.time_ns,
            )
        )
    return found[:1]


def _subject(span: Span, told: Mapping[str, AttributeValue]) -> Subject:
    rollout_id, attempt_id, response_id, trace_id = (
        _text(told.get(key))
        for key in (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID, semconv.RESPONSE_ID, semconv.FEEDBACK_TRACE)
    )
    if not any((rollout_id, attempt_id, response_id, trace_id)) and span.parent_span_id is not None:
        trace_id = span.trace_id  # an evaluation inside what it is about
    return Subject(rollout_id, attempt_id, response_id, trace_id)


def edits_of(spans: Iterable[Span]) -> tuple[Entry, ...]:
    """Return edited answers, entries that take feedback back, and entries that those name by trace; oldest first."""
    entries = [entry for span in spans if span.events for entry in entries_of(span)]
    back = {entry.trace_id for entry in entries if entry.taken_back}
    found = {entry.key: entry for entry in entries if entry.correction or entry.trace_id in back}
    return tuple(sorted(found.values(), key=lambda entry: (entry.given_ns, entry.key)))


def feedback_span(
    subject: Subject,
    *,
    source: str,
    kind: Literal["person", "system"],
    name: str,
    value: float | None = None,
    taken_back: bool = False,
    correction: str | None = None,
    comment: str | None = None,
    entry_id: str | None = None,
    given_ns: int | None = None,
) -> Span:
    """Return feedback as a span.

    Args:
        entry_id: the source's own id of this feedback; a second one with the same id becomes the same span.
    """
    given_ns = time.time_ns() if given_ns is None else given_ns
    who: dict[str, AttributeValue] = {semconv.FEEDBACK_SOURCE: source, semconv.FEEDBACK_KIND: kind}
    event: dict[str, AttributeValue] = {semconv.EVALUATION_NAME: name, **who}
    said = {
        semconv.EVALUATION_SCORE: value,
        semconv.FEEDBACK_TAKEN_BACK: taken_back or None,
        semconv.FEEDBACK_CORRECTION: correction,
        semconv.EVALUATION_EXPLANATION: comment,
    }
    event |= {key: one for key, one in said.items() if one is not None}
    digits = os.urandom(24) if entry_id is None else digest([source, entry_id])
    return Span(
        trace_id=digits[:16].hex(),
        span_id=digits[16:].hex(),
        parent_span_id=None,
        name=f"evaluate {name}",
        start_ns=given_ns,
        end_ns=given_ns,
        attributes={**subject.attributes(), **who},
        events=(SpanEvent(semconv.EVALUATION_EVENT, given_ns, event),),
        scope=SCOPE,
    )


def digest(parts: Iterable[object]) -> bytes:
    """Return 24 bytes that depend only on the parts: a span's two ids."""
    return hashlib.blake2b(json.dumps(list(parts)).encode(), digest_size=24).digest()


def _text(value: AttributeValue | None) -> str | None:
    return value if isinstance(value, str) and value else None
