"""Reads spans as calls, attempts, and evaluations: the input of all later stages.

Spans are stored as they arrived, in any dialect. Here they are read (``dialects/``), joined if several instrumentations
recorded one call (``joining.py``), and graded (``calls.py``). Invariants: every call has its own id, and no recorded
token is lost; the result depends neither on the order of the spans nor on duplicates; time is linear in their number.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter

from lightning_instrumentation import semconv

from lightning_trainer.bulk_objects import without_garbage_collection
from lightning_trainer.ingest.ancestry import Identity, SpanKey, key_of, resolve_identities, unique
from lightning_trainer.ingest.calls import joined_calls, read_calls, without_abandoned
from lightning_trainer.ingest.dialects import agentops, lightning
from lightning_trainer.store.tables.attempts import attempt_of
from lightning_trainer.store.tables.scores import number_of
from lightning_trainer.types import Attempt, Call, Evaluation, Span, SpanEvent

_EVALUATION_SPAN = "evaluate "


@dataclass(frozen=True, slots=True)
class Reading:
    """The contents of the spans, each part in an order that depends only on the spans."""

    calls: tuple[Call, ...]
    """By start time."""
    attempts: tuple[Attempt, ...]
    """Attempts whose root span has arrived, so they have ended; by start time."""
    evaluations: tuple[Evaluation, ...]
    """By time."""
    problems: tuple[str, ...]
    """One sentence for each contradiction and each unreadable part."""


@without_garbage_collection()
def read_spans(spans: Sequence[Span]) -> Reading:
    """Read spans of any number of traces and attempts."""
    known = unique(spans)
    identities = resolve_identities(known)
    problems: list[str] = []
    # The few spans that are more than calls: each pass over all spans costs as much as reading some calls.
    telling = [
        span
        for span in known.values()
        if span.events or semconv.ROLLOUT_ROOT in span.attributes or semconv.CALL_ABANDONED in span.attributes
    ]
    calls = without_abandoned(read_calls(joined_calls(known, identities), problems), telling)
    roots = {key_of(span) for span in telling if span.attributes.get(semconv.ROLLOUT_ROOT) is True}
    evaluations = [
        evaluation
        for span in telling
        for event in span.events
        if event.name == semconv.EVALUATION_EVENT
        # Feedback becomes a reward once the daemon has settled it (`feedback/`).
        and not (semconv.FEEDBACK_SOURCE in event.attributes or semconv.FEEDBACK_SOURCE in span.attributes)
        and (evaluation := _evaluation(span, event, identities[key_of(span)], roots, problems)) is not None
    ]
    evaluations += [
        Evaluation(name, value, *_place(span, identities[key]), None, span.end_ns)
        for key, span in known.items()
        if not lightning.is_ours(span)
        for name, value in agentops.rewards(span)
    ]
    evaluations.sort(key=lambda e: (e.time_ns, e.name, e.attempt_id or "", e.span_id or "", repr(e.value)))
    return Reading(calls, _read_attempts(telling, problems), tuple(evaluations), tuple(sorted(set(problems))))


def _place(span: Span, identity: Identity) -> tuple[str | None, str | None]:
    said = identity.rollout_id, identity.attempt_id
    return agentops.place_of(span) if said == (None, None) else said


# -- attempts and evaluations ----------------------------------------------------------------------------------------


def _read_attempts(spans: Iterable[Span], problems: list[str]) -> tuple[Attempt, ...]:
    ended: dict[str, tuple[Attempt, str]] = {}
    # Oldest first, so that of two roots the earlier one counts, as in the store.
    for span in sorted(spans, key=attrgetter("start_ns", "trace_id", "span_id")):
        if span.attributes.get(semconv.ROLLOUT_ROOT) is not True:
            continue
        attempt = attempt_of(span)
        if attempt is None:
            problems.append(f"span {span.span_id}: a rollout's root span names no rollout or attempt and is left out")
        elif attempt.attempt_id in ended:
            problems.append(
                f"attempt {attempt.attempt_id}: it has two root spans, {ended[attempt.attempt_id][1]} and "
                f"{span.span_id}; the first counts"
            )
        else:
            ended[attempt.attempt_id] = (attempt, span.span_id)
    attempts = (attempt for attempt, _ in ended.values())
    return tuple(sorted(attempts, key=lambda attempt: (attempt.started_ns, attempt.attempt_id)))


def _evaluated(span: Span, roots: Set[SpanKey]) -> str | None:
    """Return the span that an evaluation is about: the parent of an `evaluate` span, else the one with the event.

    A rollout's root stands for the whole attempt, which the evaluation's attempt id already names.
    """
    about = span.parent_span_id if span.name.startswith(_EVALUATION_SPAN) else span.span_id
    return None if about is None or (span.trace_id, about) in roots else about


def _evaluation(
    span: Span, event: SpanEvent, identity: Identity, roots: Set[SpanKey], problems: list[str]
) -> Evaluation | None:
    name = event.attributes.get(semconv.EVALUATION_NAME)
    if not isinstance(name, str) or not name:
        problems.append(f"span {span.span_id}: an evaluation has no name and is left out")
        return None
    score = event.attributes.get(semconv.EVALUATION_SCORE)
    value = number_of(score)
    if score is not None and value is None:
        problems.append(f"span {span.span_id}: the score of evaluation {name!r} is {score!r} and counts as missing")
    explanation = event.attributes.get(semconv.EVALUATION_EXPLANATION)
    evaluated = _evaluated(span, roots)
    return Evaluation(
        name=name,
        value=value,
        rollout_id=identity.rollout_id,
        attempt_id=identity.attempt_id,
        span_id=evaluated,
        time_ns=event.time_ns,
        explanation=explanation if isinstance(explanation, str) else None,
        agent=_evaluated_name(span, event, semconv.EVALUATION_AGENT),
        response_id=_evaluated_name(span, event, semconv.RESPONSE_ID),
        trace_id=None if evaluated is None else span.trace_id,
        source=_source(span),
        judge=_judge(span),
    )


def _source(span: Span) -> str | None:
    if (judge := _judge(span)) is not None:
        return f"judge {judge} ({span.attributes.get(semconv.JUDGE_KIND)}, {span.attributes.get(semconv.JUDGE_MODEL)})"
    if isinstance(sources := span.attributes.get(semconv.FEEDBACK_SOURCES), int):
        return f"feedback of {sources} source{'s' * (sources != 1)}"
    person = span.attributes.get(semconv.LABELED_BY)
    return person if isinstance(person, str) else None


def _judge(span: Span) -> str | None:
    name = span.attributes.get(semconv.JUDGE_NAME)
    return name if isinstance(name, str) else None


def _evaluated_name(span: Span, event: SpanEvent, name: str) -> str | None:
    """Return the agent or response id that an evaluation names: the event's, or the span's if it is an ``evaluate``
    span, which repeats it so that the store finds it. On any other span, such as a chat span, it is the span's own."""
    value = event.attributes.get(name)
    if value is None and span.name.startswith(_EVALUATION_SPAN):
        value = span.attributes.get(name)
    return value if isinstance(value, str) and value else None
