"""The gateway's routes: four APIs, counts of their tokens, and ``GET /v1/models``; below ``/v1``, and below the base
URL of every rollout.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Request, Response

from lightning_trainer.gateway.calls.retries import Retries
from lightning_trainer.gateway.calls.slots import Slots
from lightning_trainer.gateway.handler import GatewayHandler
from lightning_trainer.gateway.http_errors import shaped
from lightning_trainer.gateway.policies import ServedPolicies, ServedPolicy
from lightning_trainer.gateway.protocols.anthropic_answer import model_info, model_page
from lightning_trainer.gateway.protocols.registry import APIS, Api
from lightning_trainer.gateway.request import unknown_model
from lightning_trainer.ingest.http.rollout_urls import BASES
from lightning_trainer.types import SpanSink


def gateway_router(
    policies: Sequence[ServedPolicy],
    sink: SpanSink,
    *,
    max_body_bytes: int = 16 * 2**20,
    slots: Slots | None = None,
) -> APIRouter:
    """Return the routes; the router's lifespan owns the connections to the engines.

    Args:
        policies: the served policies; the first that claims an agent gets its calls.
        sink: makes records of calls durable.
        max_body_bytes: limit on a request's body; more is answered 413.
        slots: the limit on calls in flight; more are answered 429.
    """
    served = ServedPolicies(policies)
    handler = GatewayHandler(served, sink, max_body_bytes, slots or Slots(512), Retries())
    since = int(time.time())

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await served.close()

    async def list_models(request: Request) -> dict[str, Any]:
        models = await _models(served, since)
        return model_page(models) if _asks_as_anthropic(request) else {"object": "list", "data": models}

    async def one_model(request: Request) -> Any:
        name = request.path_params["model"]
        known = {entry["id"]: entry for entry in await _models(served, since)}
        if name in known:
            return model_info(known[name]) if _asks_as_anthropic(request) else known[name]
        return shaped(request, 404, str(unknown_model(name, list(known))))

    router = APIRouter(lifespan=lifespan)
    for base in BASES:
        for api in APIS:
            router.add_api_route(base + api.path, _endpoint(handler.answer, api), methods=["POST"])
            if api.count_path is not None:
                router.add_api_route(base + api.count_path, _endpoint(handler.count, api), methods=["POST"])
        router.add_api_route(f"{base}/models", list_models, methods=["GET"])
        router.add_api_route(f"{base}/models/{{model}}", one_model, methods=["GET"])
    return router


def _asks_as_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _endpoint(
    answer: Callable[[Request, Api], Awaitable[Response]], api: Api
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await answer(request, api)

    return endpoint


async def _models(served: ServedPolicies, since: int) -> list[dict[str, Any]]:
    live = await asyncio.gather(*(policy.upstream.live_version(policy.name) for policy in served))
    names = [name for policy, version in zip(served, live, strict=True) for name in policy.models(version)]
    return [{"id": name, "object": "model", "created": since, "owned_by": "lightning-trainer"} for name in names]
