"""``POST /lightning/score``: log-probabilities of token ids by a policy's own engine, and the version that gave them.

The request is passed on as it is, and so is the answer. The daemon's own judges ask the engine in the same way, without
this route: it is for ``lightning-trainer judge``, which is a process of its own.
"""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json
from lightning_trainer.judges.scoring_engine import SCORE_PATH, Post

_MOST_SEQUENCES = 512


class ScoreBody(BaseModel):
    """What is posted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str
    token_ids: list[list[Annotated[int, Field(strict=True)]]] = Field(max_length=_MOST_SEQUENCES)


def scoring(upstream: Upstream) -> Post:
    """Return a function that asks a policy's engine."""

    async def post(body: bytes) -> tuple[int, bytes]:
        answer = await upstream.complete(SCORE_PATH, body)
        return answer.status, answer.body or b""

    return post


def scoring_router(ways: Mapping[str, Post]) -> APIRouter:
    """Return the route; ``ways`` ask the engines, by policy."""
    router = APIRouter()

    @router.post(SCORE_PATH)
    async def score(request: Request) -> Response:
        try:
            body = await read_json(request, ScoreBody)
            if body.policy not in ways:
                raise JsonBodyError(404, f"there is no policy {body.policy!r}; there are: {', '.join(ways) or 'none'}")
            status, answer = await ways[body.policy](body.model_dump_json().encode())
        except JsonBodyError as error:
            return error.response()
        except EngineError as error:
            return error_response(503, str(error), retry_after_s=1)
        return Response(answer, status, media_type="application/json")

    return router
