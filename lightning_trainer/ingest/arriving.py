"""A span as the store can find it, whatever its program could write: the store reads attributes, each in one form."""

from dataclasses import replace

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects.registry import with_response_id
from lightning_trainer.types import Span


def as_stored(span: Span) -> Span:
    """Return a span with its response's id, and the mark of an attempt's root, in the form that the store reads."""
    span = with_response_id(span)
    marked = span.attributes.get(semconv.ROLLOUT_ROOT)
    if isinstance(marked, str) and marked.lower() == "true":  # Spring AI's tracer has no other type than text
        return replace(span, attributes={**span.attributes, semconv.ROLLOUT_ROOT: True})
    return span
