"""``POST /rollouts/{id}/reward``: a reward from outside of the agent's process.

It is stored as what it is everywhere else: an ``evaluate`` span with the event ``gen_ai.evaluation.result``. With an
``id`` from the caller the span's own ids follow from it, so sending it twice gives one reward (the first counts).
"""

import hashlib
import json
import math
import os
import time
from typing import Annotated, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from lightning_instrumentation import semconv
from pydantic import BaseModel, ConfigDict, Field

from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.json_bodies import JsonBodyError, error_response, read_json
from lightning_trainer.types import Attempt, AttributeValue, Span, SpanEvent, SpanSink

SCOPE = "lightning.rewards"
_Label = Annotated[str, Field(min_length=1, max_length=256)]


class RewardBody(BaseModel):
    """What is posted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Annotated[float, Field(strict=True)]
    name: _Label = "reward"
    attempt_id: _Label | None = None
    explanation: Annotated[str, Field(max_length=65536)] | None = None
    id: _Label | None = None
    """The caller's own name for this reward: a second one with the same id changes nothing."""


class KnownRollouts(Protocol):
    """What the store is asked here."""

    async def has_rollout(self, rollout_id: str) -> bool: ...

    async def attempt(self, attempt_id: str) -> Attempt | None: ...


def rewards_router(store: KnownRollouts, sink: SpanSink) -> APIRouter:
    """Return the route; ``sink`` commits the span, ``store`` knows the rollouts."""
    router = APIRouter()

    @router.post("/rollouts/{rollout_id}/reward")
    @router.post("/lightning/rollouts/{rollout_id}/rewards")
    async def reward(rollout_id: str, request: Request) -> JSONResponse:
        try:
            body = await read_json(request, RewardBody)
            finite(body.value)
            if not await store.has_rollout(rollout_id):
                raise JsonBodyError(
                    404, f"no span of rollout {rollout_id!r} has been seen; check the id, or send it later"
                )
            if body.attempt_id is not None:
                attempt = await store.attempt(body.attempt_id)
                if attempt is None or attempt.rollout_id != rollout_id:
                    raise JsonBodyError(404, f"rollout {rollout_id!r} has no attempt {body.attempt_id!r}")
            new = await sink.append([reward_span(rollout_id, body)])
        except JsonBodyError as error:
            return error.response()
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        return JSONResponse({"accepted": True, "new": bool(new)})

    return router


def finite(value: float) -> None:
    """Refuse what is no reward; raises JsonBodyError."""
    if not math.isfinite(value):
        raise JsonBodyError(422, f"value is {value}: a reward is a finite number; leave it out when there is none")


def reward_span(rollout_id: str, body: RewardBody) -> Span:
    """Return the reward as an evaluation."""
    now = time.time_ns()
    evaluation: dict[str, AttributeValue] = {
        semconv.EVALUATION_NAME: body.name,
        semconv.EVALUATION_SCORE: body.value,
    }
    if body.explanation is not None:
        evaluation[semconv.EVALUATION_EXPLANATION] = body.explanation
    attributes: dict[str, AttributeValue] = {semconv.ROLLOUT_ID: rollout_id}
    if body.attempt_id is not None:
        attributes[semconv.ATTEMPT_ID] = body.attempt_id
    digits = os.urandom(24) if body.id is None else _digest(rollout_id, body.id)
    return Span(
        trace_id=digits[:16].hex(),
        span_id=digits[16:].hex(),
        parent_span_id=None,
        name=f"evaluate {body.name}",
        start_ns=now,
        end_ns=now,
        attributes=attributes,
        events=(SpanEvent(semconv.EVALUATION_EVENT, now, evaluation),),
        scope=SCOPE,
    )


def _digest(rollout_id: str, reward_id: str) -> bytes:
    return hashlib.blake2b(json.dumps([rollout_id, reward_id]).encode(), digest_size=24).digest()
