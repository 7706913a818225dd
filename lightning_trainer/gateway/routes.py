"""The OpenAI-compatible routes: ``POST /v1/chat/completions``, ``GET /v1/models``.

Refused here: a body that is too large (413), is not JSON (400) or names another model (404); a call beyond the bound
on concurrency (429); and any call while the engine stays away longer than the queue's patience (503). Everything else
is the engine's to judge, and its errors are passed on as they are.
"""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.disconnect import CallerGoneError, unless_gone
from lightning_trainer.gateway.errors import RefusalError, unavailable
from lightning_trainer.gateway.exchange import Exchange
from lightning_trainer.gateway.hiding import restore
from lightning_trainer.gateway.identity import read_caller
from lightning_trainer.gateway.record import Sampler
from lightning_trainer.gateway.relay import RelayResponse
from lightning_trainer.gateway.request import ChatRequest, read_request, unknown_model
from lightning_trainer.gateway.slots import Slots
from lightning_trainer.gateway.upstream import EngineEndpoint, Upstream
from lightning_trainer.ingest.bodies import BodyTooLargeError, read_body
from lightning_trainer.types import SpanSink

_POLICY_HEADER = "x-lightning-policy"
_VERSION_HEADER = "x-lightning-policy-version"
_PASSED_HEADERS = ("retry-after", _POLICY_HEADER, _VERSION_HEADER)


def gateway_router(
    engine: EngineEndpoint,
    sink: SpanSink,
    *,
    policy: str,
    served_name: str | None = None,
    max_body_bytes: int = 64 * 2**20,
    queue_timeout_s: float = 180.0,
    silence_timeout_s: float = 600.0,
    max_concurrent: int = 512,
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
    """
    upstream = Upstream(
        engine, queue_timeout_s=queue_timeout_s, silence_timeout_s=silence_timeout_s, connections=max_concurrent + 8
    )
    door = _Door(upstream, sink, policy, served_name or policy, max_body_bytes, Slots(max_concurrent))

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await upstream.close()

    router = APIRouter(lifespan=lifespan)

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        try:
            return await door.answer(request)
        except RefusalError as refusal:
            return refusal.response()

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": await door.models()}

    @router.get("/v1/models/{model}")
    async def model(model: str) -> Any:
        known = {entry["id"]: entry for entry in await door.models()}
        return known[model] if model in known else unknown_model(model, list(known)).response()

    return router


class _Door:
    def __init__(
        self, upstream: Upstream, sink: SpanSink, policy: str, served_name: str, max_body_bytes: int, slots: Slots
    ) -> None:
        self._upstream = upstream
        self._sink = sink
        self._policy = policy
        self._served_name = served_name
        self._max_body_bytes = max_body_bytes
        self._slots = slots
        self._since = int(time.time())

    async def models(self) -> list[dict[str, Any]]:
        live = await self._upstream.live_version()
        names = [self._policy] if live is None else [self._policy, f"{self._policy}@v{live}"]
        return [
            {"id": name, "object": "model", "created": self._since, "owned_by": "lightning-trainer"} for name in names
        ]

    async def answer(self, request: Request) -> Response:
        """Answer a chat request; raises RefusalError where it is not the engine who refuses."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise RefusalError(415, f"content type {media_type or 'missing'!r}: send application/json")
        slot = self._slots.take()
        response: Response | None = None
        try:
            exchange = await self._read(request)
            response = await self._forward(request, exchange, slot.release)
            return response
        finally:
            if not isinstance(response, RelayResponse):  # which gives its slot back when it ends
                slot.release()

    async def _read(self, request: Request) -> Exchange:
        try:
            raw = await read_body(request.stream(), limit=self._max_body_bytes)
        except BodyTooLargeError as error:
            raise RefusalError(413, str(error), code="body_too_large") from error
        chat = read_request(raw, policy=self._policy)
        return Exchange(chat, read_caller(request.headers), Sampler(self._policy, None), self._sink)

    async def _forward(self, request: Request, exchange: Exchange, ended: Any) -> Response:
        try:
            answer = await unless_gone(request.receive, self._ask(exchange.request))
        except CallerGoneError:
            await exchange.commit_interrupted("the caller disconnected")
            return Response(status_code=499)
        except EngineError as error:
            raise unavailable(str(error)) from error
        headers = {name: answer.headers[name] for name in _PASSED_HEADERS if name in answer.headers}
        if answer.is_error:
            return Response(answer.content, answer.status_code, headers, answer.headers.get("content-type"))
        exchange.sampler = _sampler(answer.headers, self._policy)
        try:
            _check_version(exchange)
        except RefusalError:
            await answer.aclose()
            raise
        if not answer.is_closed:
            return RelayResponse(answer, exchange, headers=headers, ended=ended)
        return await self._whole(answer, exchange, headers)

    async def _ask(self, chat: ChatRequest) -> httpx.Response:
        if chat.version is not None:
            live = await self._upstream.live_version()
            if live is not None and live != chat.version:
                raise unknown_model(chat.model, [self._policy, f"{self._policy}@v{live}"])
        body = chat.upstream(self._served_name)
        if chat.body.get("stream") in (None, False):
            return await self._upstream.complete(body)
        answer = await self._upstream.open(body)
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            # The engine reads some odd values of `stream` as false.
            try:
                await answer.aread()
            finally:
                await answer.aclose()
        return answer

    async def _whole(self, answer: httpx.Response, exchange: Exchange, headers: Mapping[str, str]) -> Response:
        try:
            document = orjson.loads(answer.content)
        except orjson.JSONDecodeError as error:
            raise RefusalError(502, f"the engine's answer is not JSON: {error}", kind="engine_error") from error
        exchange.transcript.add_response(document)
        await exchange.commit()
        restore(document, exchange.request)
        # The engine's own encoder: orjson writes small floats differently.
        return JSONResponse(document, answer.status_code, dict(headers))


def _sampler(headers: httpx.Headers, policy: str) -> Sampler:
    version = headers.get(_VERSION_HEADER, "")
    return Sampler(headers.get(_POLICY_HEADER, policy), int(version) if version.isdecimal() else None)


def _check_version(exchange: Exchange) -> None:
    """A caller who insists on a version gets it or nothing: it may have changed while the request waited."""
    wanted, got = exchange.request.version, exchange.sampler.version
    if wanted is not None and got is not None and wanted != got:
        policy = exchange.sampler.policy
        raise unknown_model(exchange.request.model, [policy, f"{policy}@v{got}"])
