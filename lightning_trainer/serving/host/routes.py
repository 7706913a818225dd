"""``/lightning/...``: the versions being served, new weights, old adapters, scores."""

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.host.weights.adapter_publisher import AdapterPublisher
from lightning_trainer.serving.host.weights.publisher import EngineUnproven, Publisher
from lightning_trainer.serving.host.weights.rw_lock import DrainTimeout
from lightning_trainer.serving.publication import Publication


def build_routes(publisher: Publisher | AdapterPublisher, give_up: Callable[[str], None]) -> Starlette:
    """Return the app for our own paths.

    Args:
        give_up: called with a sentence when the engine must not serve any longer.
    """
    routes = _Routes(publisher, give_up)
    return Starlette(
        routes=[
            Route("/lightning/version", routes.version, methods=["GET"]),
            Route("/lightning/weights", routes.weights, methods=["POST"]),
            Route("/lightning/sleep/{level:int}", routes.sleep, methods=["POST"]),
            Route("/lightning/wake", routes.wake, methods=["POST"]),
            Route("/lightning/held", routes.hold, methods=["POST"]),
            Route("/lightning/held/{policy}/{version:int}", routes.drop, methods=["DELETE"]),
            Route("/lightning/score", routes.scores, methods=["POST"]),
        ]
    )


class _Routes:
    """One method per route."""

    def __init__(self, publisher: Publisher | AdapterPublisher, give_up: Callable[[str], None]) -> None:
        self._publisher = publisher
        self._give_up = give_up
        self._policies = publisher.model.policies

    async def version(self, request: Request) -> JSONResponse:
        policy = request.query_params.get("policy", self._policies[0])
        if policy not in self._policies:
            return _error(404, self._unknown(policy))
        return JSONResponse({"policy": policy, "version": self._publisher.versions[policy]})

    async def weights(self, request: Request) -> JSONResponse:
        try:
            publication = Publication.from_json(await request.json())
        except (PublicationError, ValueError) as error:
            return _error(422, str(error))
        try:
            report = await self._publisher.publish(publication)
        except EngineUnproven as error:
            self._give_up(str(error))
            return _error(500, str(error))
        return JSONResponse(report.to_json())

    async def sleep(self, request: Request) -> JSONResponse:
        level = request.path_params["level"]
        if level not in (1, 2):
            return _error(422, f"the level is {level}; it is 1 or 2")
        try:
            await self._publisher.sleep(level)
        except DrainTimeout as error:
            return _error(409, str(error))
        return JSONResponse({})

    async def wake(self, request: Request) -> JSONResponse:
        try:
            await self._publisher.wake()
        except Exception as error:  # whatever the error, the engine's weights are no longer proven
            self._give_up(str(error))
            return _error(500, str(error))
        return JSONResponse({})

    async def hold(self, request: Request) -> JSONResponse:
        if not isinstance(self._publisher, AdapterPublisher):
            return _error(422, "this engine serves one version of all weights; old ones need an engine of their own")
        try:
            publication = Publication.from_json(await request.json())
        except (PublicationError, ValueError) as error:
            return _error(422, str(error))
        return JSONResponse((await self._publisher.hold(publication)).to_json())

    async def drop(self, request: Request) -> JSONResponse:
        if isinstance(self._publisher, AdapterPublisher):
            await self._publisher.drop(request.path_params["policy"], request.path_params["version"])
        return JSONResponse({})

    async def scores(self, request: Request) -> JSONResponse:
        try:
            document = await request.json()
            token_ids = [[_token(token) for token in ids] for ids in document["token_ids"]]
            policy = document.get("policy", self._policies[0])
        except (ValueError, KeyError, TypeError, AttributeError):
            return _error(422, 'the body must be {"token_ids": [[...], ...]} with lists of integers')
        if policy not in self._policies:
            return _error(422, self._unknown(policy))
        if (reason := self._publisher.model.scoring_refusal(token_ids)) is not None:
            return _error(422, reason)
        sampler, logprobs = await self._publisher.score(policy, token_ids)
        return JSONResponse({"logprobs": logprobs, **sampler._asdict()})

    def _unknown(self, policy: object) -> str:
        return f"the policy is {policy!r}; this engine serves {', '.join(map(repr, self._policies))}"


def _token(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(value)
    return value


def _error(status: int, message: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status_code=status)
