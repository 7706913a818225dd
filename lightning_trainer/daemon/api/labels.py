"""``POST /lightning/rollouts/{id}/labels``: what a person says of a rollout: a reward, a note, or both.

The reward is stored like every other, as an ``evaluate`` span, with who gave it; of several with one name the newest
counts, so a person can correct a program or a judge. The note is a span of its own that nothing trains on.
"""

import os
import time
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from lightning_instrumentation import semconv
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lightning_trainer.config import Config
from lightning_trainer.errors import ConfigError, StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json
from lightning_trainer.ingest.http.rewards import SCOPE, KnownRollouts, RewardBody, in_range, reward_span
from lightning_trainer.types import Span, SpanSink

A_PERSON = "a person"
_Label = Annotated[str, Field(min_length=1, max_length=256)]


class LabelBody(BaseModel):
    """What is posted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: Annotated[float, Field(strict=True)] | None = None
    name: _Label = "reward"
    """Name of the reward; see ``named``."""
    note: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
    """Why, or anything else that is worth knowing."""
    attempt_id: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """The rollout's last attempt unless given."""
    by: _Label = A_PERSON

    @model_validator(mode="after")
    def _something(self) -> "LabelBody":
        if self.reward is None and self.note is None:
            raise ValueError("give a reward, a note, or both")
        return self


def named(body: LabelBody, config: Config) -> LabelBody:
    """Return the label with its reward named: if no name was posted, after the only reward that policies train by.

    Raises:
        ConfigError: no name was posted, and policies train by several rewards.
    """
    if body.reward is None or "name" in body.model_fields_set:
        return body
    return body.model_copy(update={"name": config.only_reward_name})


async def label(store: KnownRollouts, sink: SpanSink, rollout_id: str, body: LabelBody) -> str:
    """Store what a person says, and return it as a sentence.

    Raises:
        JsonBodyError: there is no such rollout or attempt, or the reward is out of range.
        StoreError: it could not be stored.
    """
    if not await store.has_rollout(rollout_id):
        raise JsonBodyError(404, f"there is no rollout {rollout_id!r} in the store")
    about = {semconv.ROLLOUT_ID: rollout_id}
    if body.attempt_id is not None:
        attempt = await store.attempt(body.attempt_id)
        if attempt is None or attempt.rollout_id != rollout_id:
            raise JsonBodyError(404, f"rollout {rollout_id!r} has no attempt {body.attempt_id!r}")
        about[semconv.ATTEMPT_ID] = body.attempt_id
        consumed = await store.consumed(attempt_ids=[body.attempt_id])
    else:
        consumed = await store.consumed(rollout_ids=[rollout_id])
    about[semconv.LABELED_BY] = body.by
    await sink.append(_spans(about, body))
    said = [f"reward {body.name} = {body.reward:g}"] if body.reward is not None else []
    said += ["note"] if body.note is not None else []
    step = next(iter(consumed.values()), None)
    late = "" if step is None or body.reward is None else f"; step {step} took it already: that is not trained again"
    return f"rollout {rollout_id}: {' and '.join(said)} stored{late}"


def labels_router(store: KnownRollouts, sink: SpanSink, config: Config) -> APIRouter:
    """Return the route; ``sink`` commits the spans, ``store`` knows the rollouts."""
    router = APIRouter()

    @router.post("/lightning/rollouts/{rollout_id:path}/labels")
    async def label_it(rollout_id: str, request: Request) -> JSONResponse:
        try:
            body = named(await read_json(request, LabelBody), config)
            said = await label(store, sink, rollout_id, body)
        except ConfigError as error:
            return error_response(422, str(error))
        except JsonBodyError as error:
            return error.response()
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        return JSONResponse({"said": said})

    return router


def _spans(about: Mapping[str, str], body: LabelBody) -> list[Span]:
    spans = []
    if body.reward is not None:
        in_range(body.reward, "reward")
        spans.append(reward_span(about, RewardBody(value=body.reward, name=body.name, explanation=body.note)))
    if body.note is not None:
        now = time.time_ns()
        spans.append(
            Span(
                trace_id=os.urandom(16).hex(),
                span_id=os.urandom(8).hex(),
                parent_span_id=None,
                name="note",
                start_ns=now,
                end_ns=now,
                attributes={**about, semconv.NOTE: body.note},
                scope=SCOPE,
            )
        )
    return spans
