"""``POST /lightning/rollouts/{id}/rewards`` and ``/lightning/responses/{id}/rewards``: rewards from elsewhere.

The first scores the rollout's last attempt, one attempt of it or one agent in it, the second one model call.

It is stored as what it is everywhere else: an ``evaluate`` span with the event ``gen_ai.evaluation.result``. With an
``id`` from the caller the span's own ids follow from it, so sending it twice gives one reward (the first counts).
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
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
    agent: _Label | None = None
    """Score this agent alone, in the attempt."""
    explanation: Annotated[str, Field(max_length=65536)] | None = None
    id: _Label | None = None
    """The caller's own name for this reward: a second one with the same id changes nothing."""


class KnownRollouts(Protocol):
    """What the store is asked here."""

    async def has_rollout(self, rollout_id: str) -> bool: ...

    async def has_response(self, response_id: str) -> bool: ...

    async def consumed(
        self,
        *,
        attempt_ids: Collection[str] = (),
        rollout_ids: Collection[str] = (),
        response_ids: Collection[str] = (),
    ) -> dict[str, int]: ...

    async def attempt(self, attempt_id: str) -> Attempt | None: ...


def rewards_router(store: KnownRollouts, sink: SpanSink) -> APIRouter:
    """Return the route; ``sink`` commits the span, ``store`` knows the rollouts."""
    router = APIRouter()

    @router.post("/lightning/rollouts/{rollout_id}/rewards")
    async def of_rollout(rollout_id: str, request: Request) -> JSONResponse:
        return await _take(request, lambda body: _score_rollout(store, rollout_id, body))

    @router.post("/lightning/responses/{response_id}/rewards")
    async def of_response(response_id: str, request: Request) -> JSONResponse:
        return await _take(request, lambda body: _score_response(store, response_id, body))

    async def _take(request: Request, score: Callable[[RewardBody], Awaitable[_Scored]]) -> JSONResponse:
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
            scored = await score(body)
            new = await sink.append([_span(scored.about, body)])
        except _UnknownTargetError as error:
            return _error(404, str(error))
        except StoreError as error:
            return _error(503, str(error), retry_after_s=1)
        answer: dict[str, object] = {"accepted": True, "new": bool(new)}
        if scored.step is not None:
            answer["too_late"] = f"its attempt belongs to step {scored.step}: the reward is stored and not trained"
        return JSONResponse(answer)

    return router


class _UnknownTargetError(LookupError):
    """There is nothing here that the reward could be about."""


@dataclass(frozen=True, slots=True)
class _Scored:
    about: dict[str, str]
    """Attributes that say what is scored."""
    step: int | None
    """That consumed it already."""


async def _score_rollout(store: KnownRollouts, rollout_id: str, body: RewardBody) -> _Scored:
    if not await store.has_rollout(rollout_id):
        raise _UnknownTargetError(f"no span of rollout {rollout_id!r} has been seen; check the id, or send it later")
    about = {semconv.ROLLOUT_ID: rollout_id}
    if body.attempt_id is None:
        consumed = await store.consumed(rollout_ids=[rollout_id])
    else:
        attempt = await store.attempt(body.attempt_id)
        if attempt is None or attempt.rollout_id != rollout_id:
            raise _UnknownTargetError(f"rollout {rollout_id!r} has no attempt {body.attempt_id!r}")
        about[semconv.ATTEMPT_ID] = body.attempt_id
        consumed = await store.consumed(attempt_ids=[body.attempt_id])
    if body.agent is not None:
        about[semconv.EVALUATION_AGENT] = body.agent
    return _Scored(about, next(iter(consumed.values()), None))


async def _score_response(store: KnownRollouts, response_id: str, body: RewardBody) -> _Scored:
    if not await store.has_response(response_id):
        raise _UnknownTargetError(f"no span of response {response_id!r} has been seen; check the id, or send it later")
    if body.attempt_id is not None or body.agent is not None:
        raise _UnknownTargetError(f"response {response_id!r} is one call: leave attempt_id and agent out")
    consumed = await store.consumed(response_ids=[response_id])
    return _Scored({semconv.RESPONSE_ID: response_id}, next(iter(consumed.values()), None))


def _span(about: Mapping[str, str], body: RewardBody) -> Span:
    now = time.time_ns()
    evaluation: dict[str, AttributeValue] = {
        semconv.EVALUATION_NAME: body.name,
        semconv.EVALUATION_SCORE: body.value,
    }
    if body.explanation is not None:
        evaluation[semconv.EVALUATION_EXPLANATION] = body.explanation
    evaluation |= {
        name: text for name, text in about.items() if name in (semconv.EVALUATION_AGENT, semconv.RESPONSE_ID)
    }
    attributes: dict[str, AttributeValue] = dict(about)
    subject = about.get(semconv.ROLLOUT_ID) or about[semconv.RESPONSE_ID]
    digits = os.urandom(24) if body.id is None else _digest(subject, body.id)
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


def _digest(subject: str, reward_id: str) -> bytes:
    return hashlib.blake2b(json.dumps([subject, reward_id]).encode(), digest_size=24).digest()


def _sentence(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in detail['loc']) or 'body'}: {detail['msg']}" for detail in error.errors()
    )


def _error(status: int, sentence: str, *, retry_after_s: int | None = None) -> JSONResponse:
    headers = None if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return JSONResponse({"error": {"message": sentence}}, status_code=status, headers=headers)
