"""Reads the dialect of our own client and gateway: spans to calls, attempts and evaluations.

The gateway's span is the authority on tokens and version, the client's on identity. They are joined on the span tree
(the gateway's span is the child of the client's chat span, or carries the ids itself from baggage), else on the
response id. A chat span of the client that itself has token ids (an engine called directly) is a call too, unless the
gateway recorded it. Invariants: one call for each (response id, choice); the result depends neither on the order of
the spans nor on duplicates; time is linear in their number.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from lightning_instrumentation import semconv

from lightning_trainer.ingest.abandoned import without_abandoned
from lightning_trainer.ingest.dialects.ancestry import Identity, SpanKey, key_of, resolve_identities, unique
from lightning_trainer.ingest.dialects.tokens import Tokens, carries_tokens, read_tokens
from lightning_trainer.store.attempts import attempt_of
from lightning_trainer.types import Attempt, Call, Evaluation, Span, SpanEvent

_EVALUATION_SPAN = "evaluate "


@dataclass(frozen=True, slots=True)
class Reading:
    """What the spans say, each part in an order of its own that depends on nothing but the spans."""

    calls: tuple[Call, ...]
    """By start time."""
    attempts: tuple[Attempt, ...]
    """Those whose root span is here, so they have ended; by start time."""
    evaluations: tuple[Evaluation, ...]
    """By time."""
    problems: tuple[str, ...]
    """One sentence for each thing that contradicts itself or cannot be read."""


def read_spans(spans: Sequence[Span]) -> Reading:
    """Read spans of any number of traces and attempts."""
    known = unique(spans)
    identities = resolve_identities(known)
    problems: list[str] = []
    calls = without_abandoned(_read_calls(known, identities, problems), known.values())
    roots = {span.span_id for span in known.values() if span.attributes.get(semconv.ROLLOUT_ROOT) is True}
    evaluations = [
        evaluation
        for key, span in known.items()
        for event in span.events
        if event.name == semconv.EVALUATION_EVENT
        and (evaluation := _evaluation(span, event, identities[key], roots, problems)) is not None
    ]
    evaluations.sort(key=lambda e: (e.time_ns, e.name, e.attempt_id or "", e.span_id or "", repr(e.value)))
    return Reading(calls, _read_attempts(known.values(), problems), tuple(evaluations), tuple(sorted(set(problems))))


# -- calls ---------------------------------------------------------------------------------------------------------


def _read_calls(
    known: Mapping[SpanKey, Span], identities: Mapping[SpanKey, Identity], problems: list[str]
) -> tuple[Call, ...]:
    gateway = [span for span in known.values() if span.scope == semconv.GATEWAY_SCOPE]
    clients = [span for span in known.values() if _is_client_chat(span)]
    clients_of_response = _first_by_response(clients)
    gateway_of_response = _first_by_response(gateway)
    gateway_of_client = {(span.trace_id, span.parent_span_id): span for span in reversed(gateway)}

    calls: list[Call] = []
    for span in gateway:
        response_id = _response_id(span)
        first = gateway_of_response.get(response_id or "", span)
        if first is not span:
            problems.append(
                f"span {span.span_id}: the gateway recorded response {response_id} before, in span {first.span_id}; "
                "that one counts"
            )
            continue
        identity = identities[key_of(span)]
        client = clients_of_response.get(response_id or "")
        if client is not None:
            identity = identity.else_from(identities[key_of(client)])
        calls.extend(_calls_of(span, identity, read_tokens(span), problems))

    for span in clients:
        if not carries_tokens(span):
            continue
        response_id = _response_id(span)
        recorded = gateway_of_response.get(response_id or "")
        if recorded is None and response_id is None:
            recorded = gateway_of_client.get(key_of(span))
        if recorded is not None:
            _compare(span, recorded, problems)
        elif clients_of_response.get(response_id or "", span) is span:
            calls.extend(_calls_of(span, identities[key_of(span)], read_tokens(span), problems))
    return tuple(sorted(calls, key=lambda call: (call.start_ns, call.call_id)))


def _is_client_chat(span: Span) -> bool:
    return span.scope != semconv.GATEWAY_SCOPE and span.attributes.get(semconv.OPERATION) == semconv.CHAT


def _response_id(span: Span) -> str | None:
    value = span.attributes.get(semconv.RESPONSE_ID)
    return value if isinstance(value, str) and value else None


def _first_by_response(spans: Iterable[Span]) -> dict[str, Span]:
    """Of several spans with one response id: the one with tokens, of these ours, of these the oldest."""
    first: dict[str, Span] = {}
    for span in sorted(
        spans, key=lambda s: (not carries_tokens(s), s.scope != semconv.CLIENT_SCOPE, s.start_ns, key_of(s))
    ):
        response_id = _response_id(span)
        if response_id is not None:
            first.setdefault(response_id, span)
    return first


def _calls_of(span: Span, identity: Identity, tokens: Tokens, problems: list[str]) -> Iterable[Call]:
    problems.extend(tokens.problems)
    policy = span.attributes.get(semconv.POLICY)
    version = span.attributes.get(semconv.POLICY_VERSION)
    for choice in tokens.choices:
        yield Call(
            call_id=f"{span.span_id}/{choice.index}",
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_span_id,
            response_id=_response_id(span),
            agent=identity.agent,
            rollout_id=identity.rollout_id,
            attempt_id=identity.attempt_id,
            policy=policy if isinstance(policy, str) else None,
            policy_version=version if isinstance(version, int) and not isinstance(version, bool) else None,
            prompt_ids=tokens.prompt_ids,
            response_ids=choice.response_ids,
            behaviour_logprobs=choice.logprobs,
            finish_reason=choice.finish_reason,
            complete=span.attributes.get(semconv.STREAM_COMPLETE) is not False,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
        )


def _compare(client: Span, gateway: Span, problems: list[str]) -> None:
    if not carries_tokens(gateway) or gateway.attributes.get(semconv.STREAM_COMPLETE) is False:
        return
    seen, recorded = read_tokens(client), read_tokens(gateway)
    if client.attributes.get(semconv.STREAM_COMPLETE) is False:
        return  # the caller stopped listening: it has a part of what the engine sampled
    same_prompt = seen.prompt_ids == recorded.prompt_ids
    if not same_prompt or [c.response_ids for c in seen.choices] != [c.response_ids for c in recorded.choices]:
        problems.append(
            f"response {_response_id(gateway)}: the client's token ids (span {client.span_id}) are not the gateway's "
            f"(span {gateway.span_id}); the gateway's count"
        )


# -- attempts and evaluations ----------------------------------------------------------------------------------------


def _read_attempts(spans: Iterable[Span], problems: list[str]) -> tuple[Attempt, ...]:
    ended: dict[str, tuple[Attempt, str]] = {}
    for span in spans:  # oldest first, so of two roots the earlier one counts, as in the store
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


def _evaluated(span: Span, roots: Set[str]) -> str | None:
    """The span that an evaluation is about: the one above an `evaluate` span, else the one that carries the event.

    A rollout's root stands for the whole attempt, which the evaluation's attempt id says already.
    """
    about = span.parent_span_id if span.name.startswith(_EVALUATION_SPAN) else span.span_id
    return None if about in roots else about


def _evaluation(
    span: Span, event: SpanEvent, identity: Identity, roots: Set[str], problems: list[str]
) -> Evaluation | None:
    name = event.attributes.get(semconv.EVALUATION_NAME)
    if not isinstance(name, str) or not name:
        problems.append(f"span {span.span_id}: an evaluation has no name and is left out")
        return None
    score = event.attributes.get(semconv.EVALUATION_SCORE)
    value = float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None
    if score is not None and (value is None or not math.isfinite(value)):
        problems.append(f"span {span.span_id}: the score of evaluation {name!r} is {score!r} and counts as missing")
        value = None
    explanation = event.attributes.get(semconv.EVALUATION_EXPLANATION)
    return Evaluation(
        name=name,
        value=value,
        rollout_id=identity.rollout_id,
        attempt_id=identity.attempt_id,
        span_id=_evaluated(span, roots),
        time_ns=event.time_ns,
        explanation=explanation if isinstance(explanation, str) else None,
    )
