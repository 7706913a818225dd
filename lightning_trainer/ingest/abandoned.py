"""Answers that nobody read to the end, though their records are complete.

A committed record cannot be changed, so the gateway writes a span below it (``lightning.call.abandoned``) when the
caller turns out to have given the call up. Such a call counts as interrupted.
"""

from collections.abc import Iterable
from dataclasses import replace

from lightning_instrumentation import semconv

from lightning_trainer.types import Call, Span


def without_abandoned(calls: Iterable[Call], spans: Iterable[Span]) -> tuple[Call, ...]:
    """Return the calls, in order, with those that were given up marked as not complete."""
    given_up = {
        (span.trace_id, span.parent_span_id) for span in spans if span.attributes.get(semconv.CALL_ABANDONED) is True
    }
    if not given_up:
        return tuple(calls)
    return tuple(replace(call, complete=False) if (call.trace_id, call.span_id) in given_up else call for call in calls)
