"""The gateway's routes: four APIs and ``GET /v1/models``, below ``/v1`` and below the base URL of every rollout."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from lightning_trainer.gateway.apis import APIS, Api
from lightning_trainer.gateway.door import Door
from lightning_trainer.gateway.old_versions import OldVersions
from lightning_trainer.gateway.request import unknown_model
from lightning_trainer.gateway.slots import Slots
from lightning_trainer.gateway.tries import Tries
from lightning_trainer.gateway.upstream import EngineEndpoint, Upstream
from lightning_trainer.types import SpanSink

_BASES = ("/v1", "/rollouts/{rollout_id}/v1", "/rollouts/{rollout_id}/agents/{agent}/v1")


def gateway_router(
    engine: EngineEndpoint,
    sink: SpanSink,
    *,
    policy: str,
    served_name: str | None = None,
    max_body_bytes: int = 16 * 2**20,
    queue_timeout_s: float = 180.0,
    silence_timeout_s: float = 600.0,
    max_concurrent: int = 512,
    old_versions: OldVersions | None = None,
) -> APIRouter:
    """Return the routes; the router's lifespan owns the connections to the engine.

    Args:
        engine: where calls go.
        sink: where their records are made durable.
        policy: the model name that callers use.
        served_name: the engine's own name for it; the policy's unless given.
        max_body_bytes: of a request; more is answered 413.
        queue_timeout_s: how long a call waits for an engine that is not there, before 503.
        silence_timeout_s: how long the engine may send nothing; then 503, or an error that ends the stream.
        max_concurrent: calls in flight; more are answered 429.
        old_versions: where ``POLICY@vN`` is answered that is not served any more; nowhere unless given.
    """
    upstream = Upstream(
        engine, queue_timeout_s=queue_timeout_s, silence_timeout_s=silence_timeout_s, connections=max_concurrent + 8
    )
    door = Door(
        upstream, sink, policy, served_name or policy, max_body_bytes, Slots(max_concurrent), Tries(), old_versions
    )
    since = int(time.time())

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await upstream.close()

    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": await _models(upstream, policy, since, old_versions)}

    async def one_model(request: Request) -> Any:
        name = request.path_params["model"]
        known = {entry["id"]: entry for entry in await _models(upstream, policy, since, old_versions)}
        if name in known:
            return known[name]
        refusal = unknown_model(name, list(known))
        return Response(orjson.dumps(refusal.body), refusal.status, media_type="application/json")

    router = APIRouter(lifespan=lifespan)
    for base in _BASES:
        for api in APIS:
            router.add_api_route(base + api.path, _endpoint(door, api), methods=["POST"])
        router.add_api_route(f"{base}/models", list_models, methods=["GET"])
        router.add_api_route(f"{base}/models/{{model}}", one_model, methods=["GET"])
    return router


def _endpoint(door: Door, api: Api) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await door.answer(request, api)

    return endpoint


async def _models(
    upstream: Upstream, policy: str, since: int, old_versions: OldVersions | None
) -> list[dict[str, Any]]:
    live = await upstream.live_version(policy)
    kept = () if old_versions is None else old_versions.versions()
    versions = sorted({*kept, *(() if live is None else (live,))}, reverse=True)
    names = [policy, *(f"{policy}@v{version}" for version in versions)]
    return [{"id": name, "object": "model", "created": since, "owned_by": "lightning-trainer"} for name in names]
