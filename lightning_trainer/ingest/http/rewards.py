"""``POST /rollouts/{id}/reward``, ``/lightning/responses/{id}/rewards``: rewards from outside the agent's process.

The first scores the rollout's last attempt, a named attempt, or one agent in it; the second scores one model call. A
reward is stored like any other evaluation: an ``evaluate`` span with the event ``gen_ai.evaluation.result``. With an
``id`` from the caller, the span's ids are derived from it, so a repeated request gives one reward (the first counts).
"""

import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from lightning_instrumentation import semconv
from lightning_instrumentation.reward import LARGEST_REWARD
from pydantic import BaseModel, ConfigDict, Field

from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json
from lightning_trainer.types import Attempt, AttributeValue, Span, SpanEvent, SpanSink

SCOPE = "lightning.rewards"
_Label = Annotated[str, Field(min_length=1, max_length=256)]


class RewardBody(BaseModel):
    """The request body."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Annotated[float, Field(strict=True)]
    name: _Label = "reward"
    attempt_id: _Label | None = None
    agent: _Label | None = None
    """Score only this agent in the attempt."""
    explanation: Annotated[str, Field(max_length=65536)] | None = None
    id: _Label | None = None
    """The caller's own id for this reward: a second one with the same id changes nothing."""


class KnownRollouts(Protocol):
    """The queries that these routes make to the store."""

    async def has_rollout(self, rollout_id: str) -> bool:
        """Whether any span of the rollout has been stored."""
        ...

    async def has_response(self, response_id: str, *, attempt_id: str | None = None) -> bool:
        """Whether any span of the response has been stored, in this attempt if one is named."""
        ...

    async def attempts_of_response(self, response_id: str) -> list[str]:
        """Return the ids of attempts that have a call with this response id."""
        ...

    async def consumed(
        self,
        *,
        attempt_ids: Collection[str] = (),
        rollout_ids: Collection[str] = (),
        response_ids: Collection[str] = (),
    ) -> dict[str, int]:
        """Return the step that has taken each of the named attempts, by attempt id; untaken ones are absent."""
        ...

    async def attempt(self, attempt_id: str) -> Attempt | None:
        """Return the attempt; None if it is unknown."""
        ...


def rewards_router(store: KnownRollouts, sink: SpanSink) -> APIRouter:
    """Return the routes; ``sink`` commits the span, ``store`` knows the rollouts."""
    router = APIRouter()

    @router.post("/rollouts/{rollout_id:path}/reward")
    @router.post("/lightning/rollouts/{rollout_id:path}/rewards")
    async def of_rollout(rollout_id: str, request: Request) -> JSONResponse:
        return await _take(request, lambda body: _score_rollout(store, rollout_id, body))

    @router.post("/lightning/responses/{response_id:path}/rewards")
    async def of_response(response_id: str, request: Request) -> JSONResponse:
        return await _take(request, lambda body: _score_response(store, response_id, body))

    async def _take(request: Request, score: Callable[[RewardBody], Awaitable[_Scored]]) -> JSONResponse:
        try:
            body = await read_json(request, RewardBody)
            in_range(body.value)
            scored = await score(body)
            new = await sink.append([reward_span(scored.about, body)])
        except JsonBodyError as error:
            return error.response()
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        answer: dict[str, object] = {"accepted": True, "new": bool(new)}
        if scored.step is not None:
            answer["too_late"] = f"its attempt belongs to step {scored.step}: the reward is stored and not trained"
        return JSONResponse(answer)

    return router


@dataclass(frozen=True, slots=True)
class _Scored:
    about: dict[str, str]
    """Attributes that identify what is scored."""
    step: int | None
    """The step that has already consumed the scored attempt; None if none has."""


async def _score_rollout(store: KnownRollouts, rollout_id: str, body: RewardBody) -> _Scored:
    if not await store.has_rollout(rollout_id):
        raise JsonBodyError(404, f"no span of rollout {rollout_id!r} has been seen; check the id, or send it later")
    about = {semconv.ROLLOUT_ID: rollout_id}
    if body.attempt_id is None:
        consumed = await store.consumed(rollout_ids=[rollout_id])
    else:
        attempt = await store.attempt(body.attempt_id)
        if attempt is None or attempt.rollout_id != rollout_id:
            raise JsonBodyError(404, f"rollout {rollout_id!r} has no attempt {body.attempt_id!r}")
        about[semconv.ATTEMPT_ID] = body.attempt_id
        consumed = await store.consumed(attempt_ids=[body.attempt_id])
    if body.agent is not None:
        about[semconv.EVALUATION_AGENT] = body.agent
    return _Scored(about, next(iter(consumed.values()), None))


async def _score_response(store: KnownRollouts, response_id: str, body: RewardBody) -> _Scored:
    if not await store.has_response(response_id):
        raise JsonBodyError(404, f"no span of response {response_id!r} has been seen; check the id, or send it later")
    if body.agent is not None:
        raise JsonBodyError(404, f"response {response_id!r} is one call: leave agent out")
    about = {semconv.RESPONSE_ID: response_id}
    if body.attempt_id is None:
        if len(attempts := await store.attempts_of_response(response_id)) > 1:
            # Servers repeat their ids: without the attempt, the reward would score a call in several attempts.
            raise JsonBodyError(
                409,
                f"calls of several attempts have the response id {response_id!r} ({', '.join(attempts)} ...): name one "
                "with attempt_id",
            )
        consumed = await store.consumed(response_ids=[response_id])
    else:
        attempt = await store.attempt(body.attempt_id)
        if attempt is None or not await store.has_response(response_id, attempt_id=body.attempt_id):
            raise JsonBodyError(404, f"no call of attempt {body.attempt_id!r} has the response id {response_id!r}")
        about |= {semconv.ROLLOUT_ID: attempt.rollout_id, semconv.ATTEMPT_ID: attempt.attempt_id}
        consumed = await store.consumed(attempt_ids=[attempt.attempt_id])
    return _Scored(about, next(iter(consumed.values()), None))


def in_range(value: float, field: str = "value") -> None:
    """Refuse a value that is not a valid reward. Raises JsonBodyError."""
    if not abs(value) <= LARGEST_REWARD:  # also rejects NaN
        raise JsonBodyError(
            422,
            f"{field} is {value}: a reward is a number between -{LARGEST_REWARD:g} and {LARGEST_REWARD:g}; leave it "
            "out when there is none",
        )


def reward_span(about: Mapping[str, str], body: RewardBody) -> Span:
    """Return the reward as an evaluation span; ``about`` are the attributes that identify what is scored."""
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
    subject = about.get(semconv.RESPONSE_ID) or about[semconv.ROLLOUT_ID]
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
