"""``POST /rollouts/{id}/end``: ends an attempt, for agents that record no spans.

The end is stored as the attempt's root span, like any other attempt's. Its ids are derived from the attempt's, so a
repeated request changes nothing (the first counts), and the calls made through the rollout's base URL are its children.
A reward in the same request is committed with it: training may begin as soon as an attempt has ended.
"""

import time
from typing import Annotated, Literal, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from lightning_instrumentation import semconv
from pydantic import BaseModel, ConfigDict, Field

from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json
from lightning_trainer.ingest.http.rewards import RewardBody, in_range, reward_span
from lightning_trainer.ingest.http.rollout_urls import root_span_ids
from lightning_trainer.types import (
    Attempt,
    AttemptState,
    AttributeValue,
    Span,
    SpanSink,
    SpanStatus,
)

SCOPE = "lightning.rollouts"
_Label = Annotated[str, Field(min_length=1, max_length=256)]


class EndBody(BaseModel):
    """The request body; an empty object is valid."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: Annotated[float, Field(strict=True)] | None = None
    task_id: _Label | None = None
    """What was attempted; defaults to the task in the calls' baggage, else the rollout's own id."""
    group_id: _Label | None = None
    """Attempts with the same group id are compared with each other; the task's id by default."""
    mode: Literal["train", "evaluate", "baseline", "record", "retried"] | None = None
    """The attempt's mode; to take an ended attempt out of training, use ``lightning-trainer drop``."""
    attempt_id: _Label | None = None
    """The rollout's id by default, as for calls through a rollout's base URL."""
    error: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Why the attempt failed; absent if it did not."""


class KnownAttempts(Protocol):
    """The queries that this route makes to the store."""

    async def attempt(self, attempt_id: str) -> Attempt | None:
        """Return the attempt; None if it is unknown."""
        ...


def rollouts_router(store: KnownAttempts, sink: SpanSink) -> APIRouter:
    """Return the route; ``sink`` commits the span, ``store`` knows the attempts."""
    router = APIRouter()

    @router.post("/rollouts/{rollout_id:path}/end")
    async def end(rollout_id: str, request: Request) -> JSONResponse:
        try:
            body = await read_json(request, EndBody)
            if body.reward is not None:
                in_range(body.reward, "reward")
            attempt = await store.attempt(body.attempt_id or rollout_id)
            if attempt is None or attempt.rollout_id != rollout_id:
                named = body.attempt_id or rollout_id
                raise JsonBodyError(404, f"no call of attempt {named!r} of rollout {rollout_id!r} has been seen")
            spans = []
            if body.reward is not None:
                # The reward's ids are derived from the attempt's, so an end that is sent again rewards once.
                given = RewardBody(value=body.reward, id=f"end of {attempt.attempt_id}")
                about = {semconv.ROLLOUT_ID: attempt.rollout_id, semconv.ATTEMPT_ID: attempt.attempt_id}
                spans.append(reward_span(about, given))
            state = attempt.state
            if state is AttemptState.RUNNING:
                spans.append(_root_span(attempt, body))
                state = AttemptState.SUCCEEDED if body.error is None else AttemptState.FAILED
            new = await sink.append(spans) if spans else 0
        except JsonBodyError as error:
            return error.response()
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        return JSONResponse({"accepted": True, "new": bool(new), "state": state})

    return router


def _root_span(attempt: Attempt, body: EndBody) -> Span:
    task = body.task_id or attempt.task_id
    said = attempt.group_id if attempt.group_id != attempt.task_id else None
    attributes: dict[str, AttributeValue] = {
        semconv.OPERATION: semconv.INVOKE_WORKFLOW,
        semconv.ROLLOUT_ROOT: True,
        semconv.ROLLOUT_ID: attempt.rollout_id,
        semconv.ATTEMPT_ID: attempt.attempt_id,
        semconv.TASK_ID: task,
        semconv.GROUP_ID: body.group_id or said or task,
        semconv.ROLLOUT_MODE: str(body.mode or attempt.mode),
    }
    trace_id, span_id = root_span_ids(attempt.rollout_id, attempt.attempt_id)
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=None,
        name=f"rollout {task}",
        start_ns=attempt.started_ns,
        end_ns=max(time.time_ns(), attempt.started_ns),
        attributes=attributes,
        status=SpanStatus.OK if body.error is None else SpanStatus.ERROR,
        status_message=body.error or "",
        scope=SCOPE,
    )
