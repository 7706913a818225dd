"""``lt.feedback(thumb="up", source="user-17", response_id=...)``: a person's or a system's feedback on an answer.

Feedback is delivered like spans, through the spool, so it is not lost while the daemon is down; ``feedback`` never
raises. Unlike a reward, it waits in the daemon, is weighted by its source's reliability, and can be removed again.
Source: OpenTelemetry GenAI semantic conventions, event ``gen_ai.evaluation.result``.
"""

from __future__ import annotations

import math
import time
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures, guarded, log
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.scope import Identity, Scope, current, use_scope
from lightning_instrumentation.spans import lifecycle

_THUMBS = {"up": 1.0, "down": 0.0, "none": None}
_LONGEST_TEXT = 65_536
_LONGEST_NAME = 256


def feedback(
    *,
    source: str,
    thumb: str | None = None,
    score: float | None = None,
    scale: tuple[float, float] = (0.0, 1.0),
    edit: str | None = None,
    name: str = "feedback",
    response_id: str | None = None,
    trace_id: str | None = None,
    rollout_id: str | None = None,
    attempt_id: str | None = None,
    comment: str | None = None,
    kind: str = "person",
) -> None:
    """Record feedback on the answer that the ids name; without any id, on the current rollout's attempt.

    Args:
        source: who gives the feedback, as an id of yours (at most 256 characters). It is stored unchanged, so do not
            use an email address.
        thumb: ``up``, ``down``, or ``none`` to take back the source's earlier feedback on the same answer.
        score: a number on ``scale``, instead of a thumb.
        scale: the lowest and the highest possible score.
        edit: the answer as it should have been. It serves as a demonstration, and as the better answer of a pair.
        name: the name of the feedback, and of the reward that it becomes.
        response_id: the id of a response: the feedback is on the model call that it answered.
        trace_id: the id of the trace that the feedback is on, 32 hex digits.
        rollout_id: the id of a rollout other than the current one.
        attempt_id: the id of one of the rollout's attempts.
        comment: the reason, in words.
        kind: ``person`` or ``system``.
    """
    subject = {
        semconv.RESPONSE_ID: response_id,
        semconv.FEEDBACK_TRACE: trace_id,
        semconv.ROLLOUT_ID: rollout_id,
        semconv.ATTEMPT_ID: attempt_id,
    }
    guarded("feedback", _record, source, thumb, score, scale, edit, name, subject, comment, kind)


def _record(
    source: Any,
    thumb: Any,
    score: Any,
    scale: Any,
    edit: Any,
    name: str,
    subject: dict[str, Any],
    comment: Any,
    kind: str,
) -> None:
    named = {key: str(one) for key, one in subject.items() if one is not None}
    here = current().identity
    if not named and here is not None:
        named = {key: one for key, one in here.attributes().items() if key in subject}
    wrong = _wrong(source, thumb, score, scale, edit, str(name), named, kind)
    if wrong is not None:
        failures.count("feedback-not-usable")
        log.error("feedback %s of %r is not recorded: %s", name, source, wrong)
        return
    who: dict[str, Any] = {semconv.FEEDBACK_SOURCE: str(source), semconv.FEEDBACK_KIND: kind}
    event: dict[str, Any] = {semconv.EVALUATION_NAME: str(name), **who}
    value = _THUMBS.get(thumb) if score is None else (float(score) - scale[0]) / (scale[1] - scale[0])
    if value is not None:
        event[semconv.EVALUATION_SCORE] = value
    if thumb == "none":
        event[semconv.FEEDBACK_TAKEN_BACK] = True
    if edit is not None:
        event[semconv.FEEDBACK_CORRECTION] = str(edit)
    if comment is not None:
        event[semconv.EVALUATION_EXPLANATION] = str(comment)[:_LONGEST_TEXT]
    started = runtime(again=True)
    if started is None:
        return
    # The feedback belongs to what it names, not to whatever is currently running.
    rollout = named.get(semconv.ROLLOUT_ID)
    target = Scope() if rollout is None else Scope(Identity(rollout, named.get(semconv.ATTEMPT_ID)))
    now = time.time_ns()
    with use_scope(target):
        span = lifecycle.begin(started.tracer, f"evaluate {name}", {**named, **who}, start_ns=now)
        if span is not None:
            span.add_event(semconv.EVALUATION_EVENT, event, timestamp=now)
            span.end(now)


def _wrong(
    source: Any, thumb: Any, score: Any, scale: Any, edit: Any, name: str, named: dict[str, str], kind: str
) -> str | None:
    """Return what is wrong with the feedback and what to do; None if it is valid."""
    if not source or len(str(source)) > _LONGEST_NAME or not name or len(name) > _LONGEST_NAME:
        return f"source and name are texts of 1 to {_LONGEST_NAME} characters"
    if kind not in ("person", "system"):
        return f"kind is {kind!r}; it is 'person' or 'system'"
    if not named:
        return "it is about nothing: call it in a rollout, or pass response_id=, trace_id= or rollout_id="
    if thumb not in (None, *_THUMBS):
        return f"thumb is {thumb!r}; it is 'up', 'down' or 'none'"
    if thumb is None and score is None and edit in (None, ""):
        return "it says nothing: give a thumb, a score or an edit"
    if thumb is not None and score is not None:
        return "it has a thumb and a score under one name; give one of them, or two with two names"
    if edit is not None and len(str(edit)) > _LONGEST_TEXT:
        return f"the edit has {len(str(edit))} characters; at most {_LONGEST_TEXT} are kept"
    if score is not None:
        low, high = scale
        on_scale = all(map(math.isfinite, (low, high, float(score)))) and low < high and low <= float(score) <= high
        if not on_scale:
            return f"score {score!r} is not on the scale from {low!r} to {high!r}; give scale=(lowest, highest)"
    return None
