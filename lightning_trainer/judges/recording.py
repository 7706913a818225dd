"""Verdicts as spans, and spans as verdicts: rewards are evaluations, whatever their source.

All spans of one question are one trace whose id is derived from the question, so an answered question is found again,
whichever caller asked it. Such a span has no parent and is not a model call: it is never trained.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence

from lightning_instrumentation import semconv

from lightning_trainer.config.judges import AnyJudge, ModelJudge, ProgramConfig, ReferenceProbabilityConfig
from lightning_trainer.judges.attempts import JudgedAttempt
from lightning_trainer.judges.judge import Verdict
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.system_prompts import fingerprint_with_prompt
from lightning_trainer.types import AttributeValue, Span, SpanEvent

SCOPE = "lightning.judges"
_LONGEST_REASON = 8000
_NO_VERDICT = "no_verdict"


def question_digest(config: AnyJudge, question: str) -> str:
    """Return 32 hex digits that are equal if the same judge is asked the same question."""
    asked = f"{fingerprint_with_prompt(config)}\n{question}".encode(errors="surrogatepass")
    return hashlib.blake2b(asked, digest_size=16).hexdigest()


def fingerprint_digest(config: AnyJudge) -> str:
    """Return 16 hex digits that are equal for judges whose settings and prompts give the same verdicts."""
    return hashlib.blake2b(fingerprint_with_prompt(config).encode(errors="surrogatepass"), digest_size=8).hexdigest()


def verdict_spans(
    config: AnyJudge,
    digest: str,
    attempts: Sequence[JudgedAttempt],
    verdicts: Iterable[Verdict],
    *,
    started_ns: int,
    again: bool = False,
    remembered: bool = False,
) -> list[Span]:
    """Return an evaluation for each verdict.

    Args:
        digest: of the question.
        started_ns: when the question was asked. The verdicts get that time, because the newest number counts: one that
            a person gave while the judge was asked comes after them.
        again: the question was asked before, and these verdicts are additional ones instead of repetitions.
        remembered: the verdicts are reused from an earlier time.
    """
    now = max(time.time_ns(), started_ns)
    spans = []
    for verdict in verdicts:
        judged = attempts[verdict.place]
        # A failure may be followed by a verdict on the same question, which must be a different span. So must a verdict
        # that replaces another number; its id is derived from that one's time, so two callers store it only once.
        salt = os.urandom(8).hex() if again or verdict.value is None else judged.judged_ns or ""
        named = f"{config.name}\n{judged.attempt.attempt_id}\n{verdict.agent}\n{verdict.call}\n{salt}"
        about = _what_it_scores(judged, verdict)
        spans.append(
            Span(
                trace_id=digest,
                span_id=hashlib.blake2b(named.encode(), digest_size=8).hexdigest(),
                parent_span_id=None,
                name=f"evaluate {config.name}",
                start_ns=started_ns,
                end_ns=now,
                attributes={
                    semconv.ROLLOUT_ID: judged.attempt.rollout_id,
                    semconv.ATTEMPT_ID: judged.attempt.attempt_id,
                    **about,
                    **_who_judged(config, verdict),
                    **({semconv.JUDGE_REMEMBERED: True} if remembered else {}),
                },
                events=(SpanEvent(semconv.EVALUATION_EVENT, started_ns, _evaluation(config, verdict, about)),),
                scope=SCOPE,
            )
        )
    return spans


def _what_it_scores(judged: JudgedAttempt, verdict: Verdict) -> dict[str, AttributeValue]:
    """Return the part of the attempt that a verdict is about, if it is not the whole attempt."""
    about: dict[str, AttributeValue] = {}
    if verdict.agent is not None:
        about[semconv.EVALUATION_AGENT] = verdict.agent
    if verdict.call is not None and (response_id := judged.turns[verdict.call].call.response_id) is not None:
        about[semconv.RESPONSE_ID] = response_id
    return about


def _evaluation(config: AnyJudge, verdict: Verdict, about: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Return the attributes of the evaluation event."""
    event: dict[str, AttributeValue] = {semconv.EVALUATION_NAME: config.name, **about}
    if verdict.reason:
        event[semconv.EVALUATION_EXPLANATION] = verdict.reason[:_LONGEST_REASON].encode(errors="replace").decode()
    if verdict.value is None:
        event[semconv.ERROR_TYPE] = _NO_VERDICT
    else:
        event[semconv.EVALUATION_SCORE] = verdict.value
    return event


def _who_judged(config: AnyJudge, verdict: Verdict) -> dict[str, AttributeValue]:
    judge: dict[str, AttributeValue] = {
        semconv.JUDGE_NAME: config.name,
        semconv.JUDGE_KIND: config.kind,
        semconv.JUDGE_MODEL: judged_by(config),
        semconv.JUDGE_FINGERPRINT: fingerprint_digest(config),
        semconv.JUDGE_PLACE: verdict.place,
    }
    if verdict.call is not None:
        judge[semconv.JUDGE_CALL] = verdict.call
    return judge


def spending_span(config: AnyJudge, digest: str, budget: Budget, *, started_ns: int) -> Span:
    """Return a span with the calls and tokens spent on a question. It is part of no attempt and not a model call."""
    attributes: dict[str, AttributeValue] = {
        semconv.JUDGE_NAME: config.name,
        semconv.JUDGE_KIND: config.kind,
        semconv.JUDGE_MODEL: judged_by(config),
        semconv.JUDGE_CALLS: budget.calls,
        semconv.INPUT_TOKENS: budget.input_tokens,
        semconv.OUTPUT_TOKENS: budget.output_tokens,
    }
    return Span(
        trace_id=digest,
        span_id=os.urandom(8).hex(),
        parent_span_id=None,
        name=f"judge {config.name}",
        start_ns=started_ns,
        end_ns=max(time.time_ns(), started_ns),
        attributes=attributes,
        scope=SCOPE,
    )


def judged_by(config: AnyJudge) -> str:
    """Return a short description of what judges: the model, the program, or the policy's engine."""
    if isinstance(config, ModelJudge):
        return config.model
    if isinstance(config, ReferenceProbabilityConfig):
        return "the policy itself" if config.policy is None else f"policy {config.policy}"
    assert isinstance(config, ProgramConfig)
    return config.function or " ".join(config.command or ())


def judged_otherwise(spans: Iterable[Span], config: AnyJudge) -> set[str]:
    """Return the attempts whose newest number from the judge of that name was given with other settings."""
    own = fingerprint_digest(config)
    newest: dict[str, tuple[int, str]] = {}
    for span in spans:
        attempt_id, by = span.attributes.get(semconv.ATTEMPT_ID), span.attributes.get(semconv.JUDGE_FINGERPRINT)
        if span.attributes.get(semconv.JUDGE_NAME) != config.name or not isinstance(by, str):
            continue
        if not isinstance(attempt_id, str):
            continue
        for event in span.events:
            if semconv.EVALUATION_SCORE in event.attributes:
                newest[attempt_id] = max(newest.get(attempt_id, (0, by)), (event.time_ns, by))
    return {attempt_id for attempt_id, (_, by) in newest.items() if by != own}


def known_verdicts(spans: Iterable[Span], places: int) -> list[Verdict] | None:
    """Return the newest verdicts in the spans of a question; None unless every attempt has one.

    Args:
        places: number of attempts in the question.
    """
    newest: dict[tuple, tuple[int, Verdict]] = {}
    for span in spans:
        place, call = span.attributes.get(semconv.JUDGE_PLACE), span.attributes.get(semconv.JUDGE_CALL)
        call = call if isinstance(call, int) else None
        if span.scope != SCOPE or not isinstance(place, int):
            continue
        for event in span.events:
            value = event.attributes.get(semconv.EVALUATION_SCORE)
            if not isinstance(value, int | float):
                continue
            agent, reason = (
                _text(event.attributes.get(name)) for name in (semconv.EVALUATION_AGENT, semconv.EVALUATION_EXPLANATION)
            )
            key, verdict = (place, agent, call), Verdict(place, float(value), reason or "", agent, call)
            newest[key] = max(newest.get(key, (0, verdict)), (event.time_ns, verdict), key=lambda one: one[0])
    if {key[0] for key in newest} != set(range(places)):
        return None
    return [verdict for _, verdict in newest.values()]


def _text(value: AttributeValue | None) -> str | None:
    return value if isinstance(value, str) and value else None
