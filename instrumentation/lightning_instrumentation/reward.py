"""``lt.reward(0.7)``: one evaluation of an attempt, sent at once; never raises.

A value that is not a number, or beyond ``LARGEST_REWARD``, is recorded as missing, which is not zero. Source:
OpenTelemetry GenAI semantic conventions, event ``gen_ai.evaluation.result``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures, guarded, log
from lightning_instrumentation.runtime import Runtime, runtime
from lightning_instrumentation.scope import Identity, Scope, current, use_scope
from lightning_instrumentation.spans import lifecycle
from lightning_instrumentation.spans.sequence import sequences

LARGEST_REWARD = 1e9
"""Sums and squares of rewards up to this are finite in every precision that credit and training use."""


def reward(
    value: Any,
    name: str = "reward",
    *,
    rollout_id: str | None = None,
    attempt_id: str | None = None,
    agent: str | None = None,
    response_id: str | None = None,
    explanation: str | None = None,
) -> None:
    """Record a reward for the rollout, attempt, or call that the ids name; without any id, for the current attempt.

    Args:
        value: a finite number (bool, numpy, and torch scalars too); anything else is logged and recorded as missing.
        name: the name of the reward, if there are several.
        rollout_id: the id of a rollout other than the current one, for instance after its end.
        attempt_id: the id of an attempt; needs no ``rollout_id``.
        agent: reward only this agent of the attempt.
        response_id: the id of a response: reward only the model call that it answered. Needs no ``rollout_id``. If
            several calls have the same response id, pass ``attempt_id`` too, except for a call of the current attempt
            that this process made.
        explanation: the reason, in words.
    """
    about = {semconv.EVALUATION_AGENT: agent, semconv.RESPONSE_ID: response_id}
    subject = {semconv.ROLLOUT_ID: rollout_id, semconv.ATTEMPT_ID: attempt_id}
    guarded("reward", _record, value, name, subject, about, explanation)


def _record(
    value: Any, name: object, subject: Mapping[str, object], given: Mapping[str, object], explanation: str | None
) -> None:
    name, about = str(name), {key: str(text) for key, text in given.items() if text is not None}
    named = {key: str(one) for key, one in subject.items() if one is not None}
    scope = current()
    if _is_here(scope.identity, named, about.get(semconv.RESPONSE_ID)):
        assert scope.identity is not None
        target, named = scope, {semconv.ROLLOUT_ID: scope.identity.rollout_id}
    elif semconv.ROLLOUT_ID in named:
        target = Scope(Identity(named[semconv.ROLLOUT_ID], named.get(semconv.ATTEMPT_ID)))
    elif named or semconv.RESPONSE_ID in about:
        target = Scope()
    else:
        failures.count("reward-outside-rollout")
        log.error(
            "reward %s=%r belongs to no rollout and is not recorded; "
            "call it inside `with lt.rollout(...)` or pass rollout_id=, attempt_id= or response_id=",
            name,
            value,
        )
        return
    score = number_of(value)
    if score is None:
        failures.count("reward-not-a-number")
        log.error(
            "reward %s=%r of rollout %s is not a number between -%g and %g; it is recorded as missing, not as zero",
            name,
            value,
            named.get(semconv.ROLLOUT_ID),
            LARGEST_REWARD,
            LARGEST_REWARD,
        )
    started = runtime(again=True)
    if started is not None:
        with use_scope(target):
            _export(started, score, name, named, about, explanation)


def _is_here(here: Identity | None, named: Mapping[str, str], response_id: str | None) -> bool:
    """Whether the ids name the current attempt or one of its calls, as far as this process knows. A reward for any
    other response names no attempt: the call is found by the response's id."""
    if here is None or not named.items() <= here.attributes().items():
        return False
    if response_id is None or semconv.ATTEMPT_ID in named:
        return True
    return here.attempt_id is not None and sequences.has_answer(here.attempt_id, response_id)


def _export(
    started: Runtime,
    score: float | None,
    name: str,
    named: Mapping[str, str],
    about: Mapping[str, str],
    explanation: str | None,
) -> None:
    now = time.time_ns()
    known = {semconv.EVALUATION_NAME: name, **named, **about}
    span = lifecycle.begin(started.tracer, f"evaluate {name}", known, start_ns=now)
    if span is None:
        return
    event: dict[str, Any] = {semconv.EVALUATION_NAME: name, **about}
    if score is None:
        event[semconv.ERROR_TYPE] = "not_a_finite_number"
    else:
        event[semconv.EVALUATION_SCORE] = score
    if explanation is not None:
        event[semconv.EVALUATION_EXPLANATION] = str(explanation)
    span.add_event(semconv.EVALUATION_EVENT, event, timestamp=now)
    span.end(now)


def number_of(value: Any) -> float | None:
    """Return a value as a reward; None if it is not a number, or is beyond ``LARGEST_REWARD``."""
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        number = float(value)
    except Exception:  # torch raises RuntimeError for a complex tensor, or one without data
        return None
    return number if abs(number) <= LARGEST_REWARD else None
