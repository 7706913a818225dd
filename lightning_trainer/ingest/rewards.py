"""``POST /rollouts/{id}/reward`` (also ``/lightning/rollouts/{id}/rewards``): a reward from another process.

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
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.bodies import BodyTooLargeError, read_body
from lightning_trainer.types import Attempt, AttributeValue, Span, SpanEvent, SpanSink

SCOPE = "lightning.rewards"
_MAX_BODY_BYTES = 2**20
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
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # Asked for, since a web page may post anything else to a loopback port without the browser's consent.
            return _error(415, "send the reward as application/json")
        try:
            raw = await read_body(request.stream(), limit=_MAX_BODY_BYTES)
            body = RewardBody.model_validate(json.loads(raw))
        except BodyTooLargeError as error:
            return _error(413, str(error))
        except ValidationError as error:
            return _error(422, _sentence(error))
        except (ValueError, RecursionError) as error:
            return _error(400, f"the body is not JSON: {error}")
        if not math.isfinite(body.value):
            return _error(422, f"value is {body.value}: a reward is a finite number; leave it out when there is none")
        try:
            if not await store.has_rollout(rollout_id):
                return _error(404, f"no span of rollout {rollout_id!r} has been seen; check the id, or send it later")
            if body.attempt_id is not None:
                attempt = await store.attempt(body.attempt_id)
                if attempt is None or attempt.rollout_id != rollout_id:
                    return _error(404, f"rollout {rollout_id!r} has no attempt {body.attempt_id!r}")
            new = await sink.append([_span(rollout_id, body)])
        except StoreError as error:
            return _error(503, str(error), retry_after_s=1)
        return JSONResponse({"accepted": True, "new": bool(new)})

    return router


def _span(rollout_id: str, body: RewardBody) -> Span:
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


def _sentence(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in detail['loc']) or 'body'}: {detail['msg']}" for detail in error.errors()
    )


def _error(status: int, sentence: str, *, retry_after_s: int | None = None) -> JSONResponse:
    headers = None if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return JSONResponse({"error": {"message": sentence}}, status_code=status, headers=headers)
