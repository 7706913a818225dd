"""Langfuse's score API, for programs that already use it: ``/api/public/scores``, for one score or a list of them, and
``/api/public/ingestion``, to which older clients send scores in batches. A score is feedback.

A score with an ``id`` can be changed, by another score with that id, and deleted. A committed span stays as it is, so
each change is a span of its own, in a trace that follows from the id: the latest that a source says about an answer
counts. Source: Langfuse public API, ``POST /api/public/scores`` (CreateScoreRequest, CreateScoreResponse; for a list
CreateScoreBatchResponse, CreateScoreBatchResults), ``DELETE /api/public/scores/{scoreId}``, ``POST
/api/public/ingestion`` (IngestionEvent, IngestionResponse).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, RootModel

from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError, checked, error_response, read_json
from lightning_trainer.ingest.http.feedback import FeedbackStore, scaled, take, trains_nothing
from lightning_trainer.samples.feedback.entries import (
    LONGEST_NAME,
    LONGEST_TEXT,
    Entry,
    Subject,
    digest,
    entries_of,
    feedback_span,
)
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import feedback as feedback_table
from lightning_trainer.store.tables.spans import select_of_trace
from lightning_trainer.types import SpanSink

_PATH, _INGESTION = "/api/public/scores", "/api/public/ingestion"
_MOST = 1000
"""Scores, or events, of one request."""
_Label = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
_Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]


class LangfuseScore(BaseModel):
    """The fields of Langfuse's ``CreateScoreRequest`` that are used; others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: _Label | None = None
    traceId: _Label | None = None
    sessionId: _Label | None = None
    observationId: _Label | None = None
    name: _Label
    value: Annotated[float, Field(allow_inf_nan=False)] | _Text
    dataType: Literal["NUMERIC", "CATEGORICAL", "BOOLEAN", "TEXT", "CORRECTION"] | None = None
    comment: Annotated[str, Field(max_length=LONGEST_TEXT)] | None = None
    metadata: Any = None


class _Scores(RootModel[Any]):
    """One score, or a list of them."""


class _Event(BaseModel):
    """One event of a batch; only events of the type ``score-create`` are feedback."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: _Label
    type: str
    body: Any = None


class _Batch(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    batch: Annotated[list[_Event], Field(max_length=_MOST)]


@dataclass(frozen=True, slots=True)
class _Said:
    """What a score says, in the form of feedback."""

    source: str
    kind: Literal["person", "system"]
    name: str
    value: float | None
    correction: str | None
    comment: str | None
    taken_back: bool = False

    @classmethod
    def by(cls, one: Entry) -> "_Said":
        kind = "system" if one.kind == "system" else "person"
        return cls(one.source, kind, one.name, one.value, one.correction, one.comment, one.taken_back)


def langfuse_router(store: FeedbackStore, sink: SpanSink, config: FeedbackConfig) -> APIRouter:
    """Return the routes; ``sink`` commits the spans."""
    router = APIRouter()

    @router.post(_PATH)
    async def score(request: Request) -> JSONResponse:
        try:
            given = (await read_json(request, _Scores)).root
            if not isinstance(given, list):
                return JSONResponse(await _kept(checked(given, LangfuseScore)))
            if len(given) > _MOST:
                raise JsonBodyError(422, f"the list has {len(given)} scores; send at most {_MOST} at once")
            refused = [(place, await _refusal(one)) for place, one in enumerate(given)]
        except JsonBodyError as error:
            return error.response()
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        errors = [{"message": f"score {place}: {error}"} for place, error in refused if error is not None]
        if not errors:
            return JSONResponse({"message": "Accepted"}, 202)
        told = {"accepted": len(given) - len(errors), "rejected": len(errors), "errors": errors}
        return JSONResponse(told, 207)

    @router.post(_INGESTION)
    async def ingest(request: Request) -> JSONResponse:
        successes: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        try:
            for event in (await read_json(request, _Batch)).batch:
                error = await _refusal(event.body, event.id) if event.type == "score-create" else None
                if error is None:
                    successes.append({"id": event.id, "status": 201})
                else:
                    errors.append({"id": event.id, "status": error.status, "message": str(error)})
        except JsonBodyError as error:
            return error.response()
        except StoreError as error:  # the client sends the batch again, which changes nothing that is stored already
            return error_response(503, str(error), retry_after_s=1)
        return JSONResponse({"successes": successes, "errors": errors}, 207)

    @router.delete(f"{_PATH}/{{score_id:path}}")
    async def delete(score_id: str) -> Response:
        try:
            last = await store.scan(lambda connection: _last(connection, score_id))
            if last is None:
                return error_response(404, f"there is no score {score_id[:LONGEST_NAME]!r}: check the id it was given")
            nothing = replace(_Said.by(last), value=None, correction=None, comment=None, taken_back=True)
            await _take(score_id, last.subject, nothing)
        except JsonBodyError as error:
            return error.response()
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        return Response(status_code=204)

    async def _refusal(given: object, event_id: str | None = None) -> JsonBodyError | None:
        """Keep one of several scores; return why it is refused, None if it is kept."""
        try:
            body = checked(given, LangfuseScore)
            await _kept(body if body.id is not None else body.model_copy(update={"id": event_id}))
        except JsonBodyError as error:
            return error
        return None

    async def _kept(body: LangfuseScore) -> dict[str, Any]:
        """Keep a score, and return its id, with the reason if it trains nothing."""
        subject, said = await _read(store, body)
        answer = {"id": await _take(body.id, subject, said)}
        reason = None if said.value is None else await trains_nothing(store, subject)
        return answer if reason is None else {**answer, "reason": reason}

    async def _take(score_id: str | None, subject: Subject, said: _Said) -> str:
        span = feedback_span(subject, **asdict(said))
        if score_id is None:
            await take(store, sink, config, span, said.source)
            return span.span_id
        last = await store.scan(lambda connection: _last(connection, score_id))
        if last is None or _Said.by(last) != said:
            await take(store, sink, config, replace(span, trace_id=_trace_of(score_id)), said.source)
        return score_id

    return router


def _last(connection: Connection, score_id: str) -> Entry | None:
    """Return what was last said under a score's id; None if nothing was."""
    said = (one for span in select_of_trace(connection, _trace_of(score_id)) for one in entries_of(span))
    return max(said, key=lambda one: one.given_ns, default=None)


def _trace_of(score_id: str) -> str:
    return digest([_PATH, score_id])[:16].hex()


async def _read(store: FeedbackStore, body: LangfuseScore) -> tuple[Subject, _Said]:
    """Return a score's subject, and what it says. Raises JsonBodyError: feedback has no equivalent of one of them."""
    told = body.metadata if isinstance(body.metadata, Mapping) else {}
    named = {key: _named(told, key) for key in ("rollout_id", "attempt_id", "response_id")}
    if body.traceId is None and not any(named.values()):
        raise JsonBodyError(
            422,
            "give a traceId, or a rollout_id, attempt_id or response_id in its metadata: scores of sessions and of "
            "dataset runs are not feedback on an answer",
        )
    correction = body.value if body.dataType == "CORRECTION" and isinstance(body.value, str) else None
    if isinstance(body.value, str) and correction is None:
        raise JsonBodyError(
            422,
            f"value {body.value[:LONGEST_NAME]!r} is a category: send a number from 0 to 1 (NUMERIC, BOOLEAN), or "
            'dataType "CORRECTION" with the answer as it should have been',
        )
    value = None if isinstance(body.value, str) else scaled(body.value, (0.0, 1.0))
    given = next((name for key in ("source", "user_id", "userId") if (name := _named(told, key)) is not None), None)
    said = _Said(
        given or "langfuse", "person" if given else "system", body.name, value, correction, body.comment or None
    )
    if body.traceId is None:
        return Subject(**named), said
    trace_id = body.traceId.replace("-", "").lower()
    observed = (trace_id, (body.observationId or "").lower())
    # A score may arrive before its trace: only subjects that are already known are looked up in detail.
    response_id = await store.scan(lambda connection: feedback_table.response_of(connection, *observed))
    return Subject(**{**named, "response_id": named["response_id"] or response_id}, trace_id=trace_id), said


def _named(told: Mapping[str, Any], key: str) -> str | None:
    """Return a name in the metadata, which is the user's JSON: it may be of any type, or invalid Unicode."""
    name = told.get(key)
    return name[:LONGEST_NAME].encode(errors="replace").decode() or None if isinstance(name, str) else None
