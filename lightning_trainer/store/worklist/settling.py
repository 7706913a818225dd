"""Settling feedback: the stored feedback is reviewed, and the rewards made from it are updated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_instrumentation import semconv

from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.samples.feedback.entries import SCOPE, digest
from lightning_trainer.samples.feedback.review import (
    Kept,
    Outcome,
    Review,
    State,
    is_trusted,
    quarantine_ns,
    review,
)
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import feedback, forgotten
from lightning_trainer.store.tables.steps import select_consumed
from lightning_trainer.store.worklist import feedback_rewards
from lightning_trainer.store.worklist.feedback_rewards import Settled
from lightning_trainer.types import AttributeValue, Span, SpanEvent

_SAME = 0.02
"""A reward that would change by no more is kept: sources' weights shift a little with every piece of feedback."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The writes that bring the rewards in line with the review."""

    review: Review
    made: tuple[tuple[Outcome, Settled], ...]
    retracted: tuple[str, ...]
    """Targets whose rewards no longer hold."""
    forgotten_mark: int
    """See :func:`forgotten.change_mark`: if it has changed since, the review may include what a forgotten source said.
    """


def look(connection: Connection, config: FeedbackConfig, now_ns: int) -> Review:
    """Review the stored feedback."""
    return _look(connection, config, now_ns)[1]


def _look(connection: Connection, config: FeedbackConfig, now_ns: int) -> tuple[list[Kept], Review]:
    """Review the stored feedback; also return the feedback that was reviewed."""
    released_ns = now_ns - quarantine_ns(config)
    kept = feedback.select(connection, released_ns)
    attempts = {one.attempt_id for one in kept if one.attempt_id is not None}
    seen = review(kept, feedback.select_verified(connection, attempts, config.verified), config, now_ns)
    if sum(one.received_ns > released_ns for one in kept) >= feedback.READ:
        first_ns = feedback.first_after(connection, released_ns)  # older than what was read of the quarantine
        seen = replace(seen, next_release_ns=None if first_ns is None else first_ns + quarantine_ns(config))
    return kept, seen


def not_released(connection: Connection, config: FeedbackConfig, now_ns: int) -> set[tuple[str, str]]:
    """Return the keys of edited answers that do not count, because they are in quarantine, over a cap, or from a source
    that weighs next to nothing."""
    kept, seen = _look(connection, config, now_ns)
    waiting = feedback.edits_after(connection, now_ns - quarantine_ns(config))
    return {
        one.key
        for one in kept
        if one.edited
        and (seen.states[one.key] in (State.QUARANTINED, State.CAPPED) or seen.standings[one.source].ignored)
    } | {(trace_id, span_id) for source, trace_id, span_id in waiting if not is_trusted(source, config)}


def changes(connection: Connection, config: FeedbackConfig, now_ns: int) -> Changes:
    """Return the required changes; a reward that a step has consumed is not changed."""
    seen = look(connection, config, now_ns)
    settled = feedback_rewards.select(connection, {one.target for one in seen.outcomes})
    consumed = select_consumed(connection, attempt_ids={one.attempt_id for one in seen.outcomes})
    made: list[tuple[Outcome, Settled]] = []
    retracted: list[str] = []
    for outcome in seen.outcomes:
        before = settled.get(outcome.target)
        if before is not None and outcome.attempt_id in consumed:
            continue
        if outcome.value is None:
            retracted += [outcome.target] if before is not None else []
        elif before is None or abs(outcome.value - before.value) > _SAME:
            made.append((outcome, _settled(outcome, outcome.value, 0 if before is None else before.number + 1)))
    return Changes(seen, tuple(made), tuple(retracted), forgotten.change_mark(connection))


def put(connection: Connection, found: Changes, now_ns: int) -> list[Span]:
    """Record the changes and return the rewards' spans, to be stored in the same transaction.

    If a source was forgotten since the changes were computed, nothing is changed, and they must be computed again.
    """
    if forgotten.change_mark(connection) != found.forgotten_mark:
        return []
    feedback_rewards.retract(connection, found.retracted)
    return _spans_of(feedback_rewards.put(connection, found.made), now_ns)


def _settled(outcome: Outcome, value: float, number: int) -> Settled:
    digits = digest([SCOPE, outcome.target, number, repr(value), outcome.sources])
    return Settled(outcome.target, digits[:16].hex(), digits[16:].hex(), value, number)


def _spans_of(made: Sequence[tuple[Outcome, Settled]], now_ns: int) -> list[Span]:
    """Return the rewards as evaluation spans; they name no source."""
    spans = []
    for outcome, settled in made:
        about: dict[str, AttributeValue] = {semconv.ATTEMPT_ID: outcome.attempt_id}
        exact: dict[str, AttributeValue] = {}
        if outcome.response_id is not None:
            exact[semconv.RESPONSE_ID] = outcome.response_id
        event: dict[str, AttributeValue] = {
            semconv.EVALUATION_NAME: outcome.name,
            semconv.EVALUATION_SCORE: settled.value,
            semconv.EVALUATION_EXPLANATION: outcome.why,
            **exact,
        }
        spans.append(
            Span(
                trace_id=settled.trace_id,
                span_id=settled.span_id,
                parent_span_id=None,
                name=f"evaluate {outcome.name}",
                start_ns=now_ns,
                end_ns=now_ns,
                attributes={**about, **exact, semconv.FEEDBACK_SOURCES: len(outcome.sources)},
                events=(SpanEvent(semconv.EVALUATION_EVENT, now_ns, event),),
                scope=SCOPE,
            )
        )
    return spans
