"""``lt.reward(0.7)``: one evaluation of an attempt, sent at once; never raises.

A value that is not a number, or beyond ``LARGEST_REWARD``, is recorded as missing, which is not zero. Source:
OpenTelemetry GenAI semantic conventions, event ``gen_ai.evaluation.result``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures, guarded, log
from lightning_instrumentation.runtime import Runtime, runtime
from lightning_instrumentation.scope import Identity, Scope, current, use_scope
from lightning_instrumentation.telemetry import spans

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
    """Record a reward for the current attempt, or for what is named.

    Args:
        value: a finite number (bool, numpy, and torch scalars too); anything else is logged and recorded as missing.
        name: the name of the reward, if there are several.
        rollout_id: of a rollout other than the current one, for instance after its end.
        attempt_id: of one of its attempts.
        agent: reward only this agent of the attempt.
        response_id: reward one model call, by the id of its response; needs no rollout.
        explanation: the reason, in words.
    """
    about = {semconv.EVALUATION_AGENT: agent, semconv.RESPONSE_ID: response_id}
    guarded("reward", _record, value, name, rollout_id, attempt_id, about, explanation)


def _record(
    value: Any,
    name: object,
    rollout_id: str | None,
    attempt_id: str | None,
    given: Mapping[str, object],
    explanation: str | None,
) -> None:
    name, about = str(name), {key: str(text) for key, text in given.items() if text is not None}
    scope = current()
    here = scope.identity
    if rollout_id is not None and (here is None or here.rollout_id != rollout_id):
        target = Scope(Identity(str(rollout_id), str(attempt_id) if attempt_id is not None else None))
    elif here is not None:
        target = replace(scope, identity=replace(here, attempt_id=str(attempt_id or here.attempt_id)))
    elif semconv.RESPONSE_ID in about:
        target = Scope()
    else:
        failures.count("reward-outside-rollout")
        log.error(
            "reward %s=%r belongs to no rollout and is not recorded; "
            "call it inside `with lt.rollout(...)` or pass rollout_id= or response_id=",
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
            target.identity.rollout_id if target.identity else None,
            LARGEST_REWARD,
            LARGEST_REWARD,
        )
    started = runtime()
    if started is not None:
        with use_scope(target):
            _export(started, score, name, about, explanation)


def _export(started: Runtime, score: float | None, name: str, about: dict[str, str], explanation: str | None) -> None:
    now = time.time_ns()
    span = spans.begin(started.tracer, f"evaluate {name}", {semconv.EVALUATION_NAME: name, **about}, start_ns=now)
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
    """Return a value as a reward; None if it is not a number, or one beyond ``LARGEST_REWARD``."""
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        number = float(value)
    except Exception:  # torch raises RuntimeError for a complex tensor, or one without data
        return None
    return number if abs(number) <= LARGEST_REWARD else None
