"""``POST /lightning/feedback``: feedback from people and systems, over HTTP.

A request is answered after the commit; with an ``id`` from the caller, it is idempotent. Feedback is evaluated in
``lightning_trainer/samples/feedback/``.
"""

import math
import time
from collections.abc import Callable, Collection
from typing import Annotated, Literal, Protocol, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from lightning_instrumentation import semconv
from pydantic import BaseModel, ConfigDict, Field

from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json
from lightning_trainer.samples.feedback.entries import LONGEST_NAME, LONGEST_TEXT, Subject, entries_of, feedback_span
from lightning_trainer.samples.feedback.review import hour_began_ns, is_trusted, within_caps
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.retention.sweep import expired_among
from lightning_trainer.store.tables import feedback as feedback_table
from lightning_trainer.store.tables.rollouts import select_of_task
from lightning_trainer.types import Attempt, Span, SpanSink

Result = TypeVar("Result")
_Label = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
_Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
_NO_ATTEMPT = (
    "it rates no attempt: what it names belongs to no rollout, or to several attempts; it counts once its spans say "
    f"which (make the call in lt.rollout, or give its spans {semconv.ROLLOUT_ID} and {semconv.ATTEMPT_ID}; or name the "
    "attempt_id)"
)
_THUMBS = {"up": 1.0, "down": 0.0}


class FeedbackBody(BaseModel):
    """The request body: the source, the subject, and a thumb, a score, an edited answer, or several of these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: _Label
    """Who gives it, as an id of yours; it is not redacted, so do not use an email address."""
    kind: Literal["person", "system"] = "person"
    rollout_id: _Label | None = None
    attempt_id: _Label | None = None
    response_id: _Label | None = None
    trace_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    name: _Label = "feedback"
    thumb: Literal["up", "down", "none"] | None = None
    """``none`` takes back the source's feedback on this subject under this name."""
    score: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None
    scale: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest score."""
    edit: _Text | None = None
    """The answer as it should have been."""
    comment: _Text | None = None
    id: _Label | None = None
    """The source's own id for this feedback: a second one with the same id changes nothing."""


class FeedbackStore(Protocol):
    """The queries that these routes and ``langfuse.py``'s make to the store."""

    async def has_rollout(self, rollout_id: str) -> bool:
        """Whether any span of the rollout has been stored."""
        ...

    async def has_response(self, response_id: str, *, attempt_id: str | None = None) -> bool:
        """Whether any span of the response has been stored, in this attempt if one is named."""
        ...

    async def attempt(self, attempt_id: str) -> Attempt | None:
        """Return the attempt; None if it is unknown."""
        ...

    async def consumed(self, *, attempt_ids: Collection[str] = ()) -> dict[str, int]:
        """Return the step that has taken each of the named attempts, by attempt id; untaken ones are absent."""
        ...

    async def scan(self, query: Callable[[Connection], Result]) -> Result:
        """Run a query on a reader's connection, off the event loop, and return its result."""
        ...


def feedback_router(store: FeedbackStore, sink: SpanSink, config: FeedbackConfig) -> APIRouter:
    """Return the route; ``sink`` commits the span."""
    router = APIRouter()

    @router.post("/lightning/feedback")
    async def give(request: Request) -> JSONResponse:
        try:
            body = await read_json(request, FeedbackBody)
            span = _span(body)
            subject = Subject(body.rollout_id, body.attempt_id, body.response_id, body.trace_id)
            await _known(store, subject)
            new = await take(store, sink, config, span, body.source)
        except JsonBodyError as error:
            return error.response()
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        waits_s = 0 if is_trusted(body.source, config) or _withdraws(span) else config.quarantine
        answer = {"accepted": True, "new": new, "counts_in_s": waits_s}
        rates = body.thumb is not None or body.score is not None
        if rates and (reason := await trains_nothing(store, subject)) is not None:
            return JSONResponse({**answer, "counts_in_s": None, "reason": reason})
        return JSONResponse(answer)

    return router


async def take(store: FeedbackStore, sink: SpanSink, config: FeedbackConfig, span: Span, source: str) -> bool:
    """Store feedback; return whether it is new.

    Raises:
        JsonBodyError: more feedback came in this hour than counts (429); feedback that only takes something back, or is
            stored already, is never refused.
    """
    key = (span.trace_id, span.span_id)
    free = is_trusted(source, config) or _withdraws(span)
    if not free and not await store.scan(lambda c: feedback_table.is_kept(c, *key)):
        since_ns = hour_began_ns(time.time_ns())
        said = within_caps(await store.scan(lambda c: feedback_table.said_lately(c, since_ns)), config)
        for number, most, who in (
            (said.get(source, 0), config.source_per_hour, f"source {source!r}: source_per_hour"),
            (sum(said.values()), config.all_per_hour, "all sources together: all_per_hour"),
        ):
            if number >= most:
                raise JsonBodyError(
                    429, f"{number} pieces of feedback came in this hour of {who} = {most}; send it later"
                )
    return bool(await sink.append([span]))


def _withdraws(span: Span) -> bool:
    """Whether the span only takes feedback back; such a span counts at once and against no cap, as in the review."""
    return any(one.taken_back and one.correction is None for one in entries_of(span))


def _span(body: FeedbackBody) -> Span:
    """Return the feedback as a span. Raises JsonBodyError: it names no subject, says nothing, or says two things."""
    subject = Subject(body.rollout_id, body.attempt_id, body.response_id, body.trace_id)
    if not subject.named:
        raise JsonBodyError(422, "say what it is about: response_id, trace_id or rollout_id")
    if body.thumb is None and body.score is None and body.edit is None:
        raise JsonBodyError(422, "it says nothing: give a thumb (up, down, none), a score or an edit")
    if body.thumb is not None and body.score is not None:
        raise JsonBodyError(422, "it has a thumb and a score under one name; send one of them, or two with two names")
    value = _THUMBS.get(body.thumb or "")
    if body.score is not None:
        value = scaled(body.score, body.scale)
    return feedback_span(
        subject,
        source=body.source,
        kind=body.kind,
        name=body.name,
        value=value,
        taken_back=body.thumb == "none",
        correction=body.edit,
        comment=body.comment,
        entry_id=body.id,
    )


def scaled(score: float, scale: tuple[float, float]) -> float:
    """Return a score's position on its scale, from 0 to 1. Raises JsonBodyError: it is outside the scale."""
    low, high = scale
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise JsonBodyError(422, f"scale is {list(scale)}: write the lowest and the highest score, like [0, 5]")
    if not low <= score <= high:
        raise JsonBodyError(422, f"score is {score:g}, and the scale goes from {low:g} to {high:g}; give another scale")
    return (score - low) / (high - low)


async def trains_nothing(store: FeedbackStore, subject: Subject) -> str | None:
    """Return why a rating of this subject trains nothing; None if it may."""
    attempt_id = await store.scan(lambda connection: feedback_table.attempt_of(connection, subject))
    if attempt_id is None:
        unseen = f"attempt {subject.attempt_id!r}" if subject.attempt_id else f"rollout {subject.rollout_id!r}"
        if subject.attempt_id or subject.rollout_id:
            return f"it rates no attempt: no span of {unseen} has been seen; it counts once its spans come"
        return _NO_ATTEMPT
    if await store.scan(lambda connection: expired_among(connection, [attempt_id])):
        return "the spans of its attempt were deleted: it trains nothing"
    if (step := (await store.consumed(attempt_ids=[attempt_id])).get(attempt_id)) is not None:
        return f"its attempt belongs to step {step}: it is stored and not trained"
    return None


async def _known(store: FeedbackStore, subject: Subject) -> None:
    """Check that everything the subject names has been seen. Raises JsonBodyError: something has not."""
    attempt_id, rollout_id, response_id, trace_id = (
        *(subject.attempt_id, subject.rollout_id, subject.response_id, subject.trace_id),
    )
    if attempt_id is not None:
        attempt = await store.attempt(attempt_id)
        if attempt is None or rollout_id not in (None, attempt.rollout_id):
            raise JsonBodyError(404, f"there is no attempt {attempt_id!r}; check the ids, or send it later")
    elif rollout_id is not None and not await store.has_rollout(rollout_id):
        if await store.scan(lambda c: select_of_task(c, rollout_id)):
            raise JsonBodyError(
                404,
                f"{rollout_id!r} is a task and not a rollout: a rollout has an id of its own, which "
                "lt.rollout(task, rollout_id=...) sets",
            )
        raise JsonBodyError(404, f"no span of rollout {rollout_id!r} has been seen; check the id, or send it later")
    if response_id is not None and not await store.has_response(response_id, attempt_id=attempt_id):
        raise JsonBodyError(404, f"no span of response {response_id!r} has been seen; check the id, or send it later")
    if trace_id is not None and not await store.scan(lambda c: feedback_table.is_known(c, trace_id)):
        raise JsonBodyError(404, f"no span of trace {trace_id!r} has been seen; check the id, or send it later")
