"""``/api/public/scores``: Langfuse's score API, for programs that already use it. A score is feedback.

A score with an ``id`` can be changed, by another one with that id, and deleted. A committed span stays as it is, so
each change is a span of its own, in a trace that follows from the id: of what a source says about an answer, the latest
counts. Source: Langfuse public API, ``POST /api/public/scores`` (CreateScoreRequest, CreateScoreResponse), ``DELETE
/api/public/scores/{scoreId}``.
"""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json
from lightning_trainer.ingest.http.feedback import FeedbackStore, scaled, take
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

_PATH = "/api/public/scores"
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
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Said:
    """What a score says, as feedback has it."""

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
    """Return the routes; ``sink`` commits the span."""
    router = APIRouter()

    @router.post(_PATH)
    async def score(request: Request) -> JSONResponse:
        try:
            body = await read_json(request, LangfuseScore)
            score_id = await _take(body.id, *await _read(store, body))
        except JsonBodyError as error:
            return error.response()
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        return JSONResponse({"id": score_id})

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
    """Return what a score is about and says. Raises JsonBodyError: feedback has no equivalent of one of them."""
    if body.traceId is None:
        raise JsonBodyError(422, "give a traceId: scores of sessions and of dataset runs are not feedback on an answer")
    correction = body.value if body.dataType == "CORRECTION" and isinstance(body.value, str) else None
    if isinstance(body.value, str) and correction is None:
        raise JsonBodyError(
            422,
            f"value {body.value[:LONGEST_NAME]!r} is a category: send a number from 0 to 1 (NUMERIC, BOOLEAN), or "
            'dataType "CORRECTION" with the answer as it should have been',
        )
    value = None if isinstance(body.value, str) else scaled(body.value, (0.0, 1.0))
    told = body.metadata or {}
    given = next((told[key] for key in ("source", "user_id", "userId") if isinstance(told.get(key), str)), None)
    source = (given or "langfuse")[:LONGEST_NAME].encode(errors="replace").decode() or "langfuse"
    trace_id = body.traceId.replace("-", "").lower()
    observed = (trace_id, (body.observationId or "").lower())
    # A score may arrive before its trace: only subjects that are already known are looked up in detail.
    response_id = await store.scan(lambda connection: feedback_table.response_of(connection, *observed))
    said = _Said(source, "person" if given else "system", body.name, value, correction, body.comment or None)
    return Subject(trace_id=trace_id, response_id=response_id), said
