"""``/lightning/...``: the version being served, new weights, scores."""

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.host.gate import Gate
from lightning_trainer.serving.host.publisher import EngineUnproven, Publisher
from lightning_trainer.serving.host.scoring import score
from lightning_trainer.serving.publication import Publication


def build_routes(
    engine: Any, gate: Gate, publisher: Publisher, policy: str, give_up: Callable[[str], None]
) -> Starlette:
    """Return the app for our own paths.

    Args:
        give_up: called with a sentence when the engine must not serve any longer.
    """

    async def version(_request: Request) -> JSONResponse:
        return JSONResponse({"policy": policy, "version": publisher.version})

    async def weights(request: Request) -> JSONResponse:
        try:
            publication = Publication.from_json(await request.json())
        except (PublicationError, ValueError) as error:
            return _error(422, str(error))
        try:
            report = await publisher.publish(publication)
        except EngineUnproven as error:
            give_up(str(error))
            return _error(500, str(error))
        return JSONResponse(report.to_json())

    async def scores(request: Request) -> JSONResponse:
        try:
            document = await request.json()
            token_ids = [[_token(token) for token in ids] for ids in document["token_ids"]]
        except (ValueError, KeyError, TypeError):
            return _error(422, 'the body must be {"token_ids": [[...], ...]} with lists of integers')
        if (reason := publisher.scoring_refusal(token_ids)) is not None:
            return _error(422, reason)
        async with gate.reading():
            logprobs = await score(engine, token_ids)
            return JSONResponse({"logprobs": logprobs, "policy": policy, "version": publisher.version})

    return Starlette(
        routes=[
            Route("/lightning/version", version, methods=["GET"]),
            Route("/lightning/weights", weights, methods=["POST"]),
            Route("/lightning/score", scores, methods=["POST"]),
        ]
    )


def _token(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(value)
    return value


def _error(status: int, message: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status_code=status)
