"""A stub engine that answers as vLLM does, field for field, and a gateway in front of it, both over real HTTP."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import httpx
import orjson
import pytest
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.auth import require_token
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.gateway.http_errors import answer_in_the_callers_shape
from lightning_trainer.gateway.policies import ServedPolicy
from lightning_trainer.gateway.routes import gateway_router
from lightning_trainer.types import Span

PROMPT_IDS = [11, 12, 13]
TEXT = ["The", " café", " is", " open", "."]


class StubEngine:
    """Speaks ``/v1/chat/completions`` and ``/v1/completions`` like vLLM 0.31: null where vLLM writes null, absent where
    it writes nothing."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers_seen: list[dict[str, str]] = []
        self.policy = "sql"
        self.version = 3
        self.reported_version: int | None = None
        """What it says its version is, where that is not what it samples with by then."""
        self.tool_call: bool | Callable[[dict[str, Any]], bool] = False
        """Whether it calls a tool, of all requests or of one."""
        self.reasoning: str | None = None
        self.thinks = 0
        """How many of its tokens are reasoning, in place of ``reasoning``."""
        self.hides_tokens = False
        """It leaves out ids and logprobs, as vLLM does where reasoning is hidden from its parser's answer."""
        self.fixed_id: str | None = None
        self.error: tuple[int, dict[str, Any]] | None = None
        self.refuse: Callable[[dict[str, Any]], str | None] = lambda body: None
        """Returns the parameter that it answers 400 about."""
        self.redirect: str | None = None
        self.finish_reason = "stop"
        self.arguments = '{"expression": "6*7"}'
        self.stop_reason: str | None = None
        self.supports: dict[str, Any] | None = None
        """What it says tokens were drawn from, as our own engines do."""
        self.cut_after: int | None = None
        """Streams end without a word after so many tokens."""
        self.pace: Callable[[int], Any] | None = None
        """Awaited before token i."""
        self.cancelled = asyncio.Event()
        self._numbers = itertools.count(1)
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.generate)
        self.app.post("/v1/completions")(self.generate)
        self.app.get("/lightning/version")(self.report_version)

    async def report_version(self) -> dict[str, Any]:
        return {"policy": self.policy, "version": self.reported_version or self.version}

    async def generate(self, request: Request):
        body = await request.json()
        self.requests.append(body)
        self.headers_seen.append(dict(request.headers))
        if request.headers.get("authorization") != "Bearer engine-secret":
            return JSONResponse({"error": "unauthorized"}, 401)
        if self.hides_tokens:
            body |= {"return_token_ids": False, "logprobs": None}
        if self.error is not None:
            return JSONResponse(self.error[1], self.error[0])
        if (wrong := self.refuse(body)) is not None:
            error = {"message": f"{wrong} is not taken by this model", "type": "BadRequestError", "param": wrong}
            return JSONResponse({"error": {**error, "code": 400}}, 400)
        if self.redirect is not None:
            return Response(status_code=307, headers={"location": self.redirect})
        headers = {"x-lightning-policy": self.policy, "x-lightning-policy-version": str(self.version)}
        if self.supports is not None and request.headers.get("x-lightning-support") == "1":
            headers["x-lightning-support"] = "1"
        base = {
            "id": self.fixed_id or f"chatcmpl-{next(self._numbers)}",
            "created": 1_700_000_000,
            "model": body["model"],
        }
        chat = request.url.path == "/v1/chat/completions"
        if body.get("stream"):
            stream = self._stream(body, base) if chat else self._completion_stream(body, base)
            return StreamingResponse(stream, headers=headers, media_type="text/event-stream")
        watching = asyncio.create_task(self._watch(request))
        for position in range(len(TEXT)):
            if self.pace is not None:
                await self.pace(position)
        watching.cancel()
        whole = (self._whole if chat else self._completion)(body, base)
        return JSONResponse(whole | ({"lightning_support": self.supports} if self.supports else {}), headers=headers)

    async def _watch(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.cancelled.set()

    def tokens(self, choice: int) -> list[int]:
        return [100 * (choice + 1) + position for position in range(len(TEXT))]

    def logprobs(self, choice: int) -> list[float]:
        # The small one is written differently by different JSON encoders.
        return [-(choice + 1) / 8 - position / 16 for position in range(len(TEXT) - 1)] + [-(2.0**-17)]

    def _logprobs(self, body, choice: int, positions: Sequence[int]) -> dict[str, Any] | None:
        if not body.get("logprobs") or body.get("top_logprobs", 0) is None:
            return None
        logprobs = self.logprobs(choice)
        return {
            "content": [
                {"token": TEXT[p], "logprob": logprobs[p], "bytes": list(TEXT[p].encode()), "top_logprobs": []}
                for p in positions
            ]
        }

    def _finish(self, body) -> str:
        if not self._calls(body):
            return self.finish_reason
        return "stop" if isinstance(body.get("tool_choice"), dict) else "tool_calls"  # as OpenAI does

    def _calls(self, body) -> bool:
        return self.tool_call(body) if callable(self.tool_call) else self.tool_call

    def _call(self) -> dict[str, Any]:
        return {
            "id": "call_1",
            "type": "function",
            "function": {"name": "calculator", "arguments": self.arguments},
        }

    def _whole(self, body, base) -> dict[str, Any]:
        ids = bool(body.get("return_token_ids"))
        choices = []
        for index in range(body.get("n") or 1):
            message = {"role": "assistant", "content": "".join(TEXT[self.thinks :]), "refusal": None, "tool_calls": []}
            if self._calls(body):
                message |= {"content": None, "tool_calls": [self._call()]}
            if self.reasoning is not None or self.thinks:
                message["reasoning"] = self.reasoning or "".join(TEXT[: self.thinks])
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs(body, index, range(len(TEXT))),
                    "finish_reason": self._finish(body),
                    "stop_reason": self.stop_reason,
                    "token_ids": self.tokens(index) if ids else None,
                }
            )
        return {
            **base,
            "object": "chat.completion",
            "choices": choices,
            "system_fingerprint": None,
            "usage": {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5},
            "prompt_logprobs": None,
            "prompt_token_ids": PROMPT_IDS if ids else None,
        }

    def _completion_choice(self, body, index: int, positions: Sequence[int], finish: str | None) -> dict[str, Any]:
        ids = bool(body.get("return_token_ids"))
        logprobs = None
        if body.get("logprobs") is not None:
            logprobs = {
                "text_offset": [0 for _ in positions],
                "token_logprobs": [self.logprobs(index)[p] for p in positions],
                "tokens": [TEXT[p] for p in positions],
                "top_logprobs": [{TEXT[p]: self.logprobs(index)[p]} for p in positions],
            }
        return {
            "index": index,
            "text": "".join(TEXT[p] for p in positions),
            "logprobs": logprobs,
            "finish_reason": finish,
            "stop_reason": None,
            "prompt_token_ids": PROMPT_IDS if ids and 0 in positions else None,
            "token_ids": [self.tokens(index)[p] for p in positions] if ids else None,
        }

    def _completion(self, body, base) -> dict[str, Any]:
        everything = range(len(TEXT))
        choices = [self._completion_choice(body, index, everything, "stop") for index in range(body.get("n") or 1)]
        usage = {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}
        return {**base, "object": "text_completion", "choices": choices, "usage": usage}

    async def _completion_stream(self, body, base) -> AsyncIterator[str]:
        try:
            for position, index in itertools.product(range(len(TEXT)), range(body.get("n") or 1)):
                if self.pace is not None:
                    await self.pace(position)
                finish = "stop" if position == len(TEXT) - 1 else None
                choice = self._completion_choice(body, index, [position], finish)
                yield _event({**base, "object": "text_completion", "choices": [choice]})
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise

    async def _stream(self, body, base) -> AsyncIterator[str]:
        ids = bool(body.get("return_token_ids"))
        base = {**base, "object": "chat.completion.chunk"}

        def chunk(choice: dict[str, Any], **extra: Any) -> str:
            return _event({**base, "choices": [choice], **extra})

        try:
            for index in range(body.get("n") or 1):
                start = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
                yield chunk({**start, "finish_reason": None}, prompt_token_ids=PROMPT_IDS if ids else None)
                if self.reasoning is not None:
                    yield chunk({**start, "delta": {"reasoning": self.reasoning}, "finish_reason": None})
            yield ": keep-alive\n\n"
            for position, index in itertools.product(range(len(TEXT)), range(body.get("n") or 1)):
                if self.pace is not None:
                    await self.pace(position)
                if position == self.cut_after:
                    raise _DropConnectionError
                last = position == len(TEXT) - 1
                if last and index == 0 and self.supports:
                    yield _event({"lightning_support": self.supports})
                delta: dict[str, Any] | None = {"reasoning" if position < self.thinks else "content": TEXT[position]}
                if self._calls(body):
                    # The tool parser swallows the tokens until the call is whole.
                    delta = {"tool_calls": [{"index": 0, **self._call()}]} if last else None
                logprobs = self._logprobs(body, index, [position])
                if delta is None and not ids and logprobs is None:
                    continue
                choice = {"index": index, "delta": delta or {}, "logprobs": logprobs, "finish_reason": None}
                if last:
                    choice |= {"finish_reason": self._finish(body), "stop_reason": self.stop_reason}
                yield chunk({**choice, "token_ids": [self.tokens(index)[position]] if ids else None})
            if (body.get("stream_options") or {}).get("include_usage"):
                usage = {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}
                yield _event({**base, "choices": [], "usage": usage})
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise


class _DropConnectionError(Exception):
    """Makes the server close the connection."""


def _event(document: dict[str, Any]) -> str:
    # As pydantic writes it, which writes floats as orjson does.
    return f"data: {orjson.dumps(document).decode()}\n\n"


class Sink:
    """Keeps spans; fails or waits on demand."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.error: Exception | None = None
        self.hold: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def append(self, spans: Sequence[Span]) -> int:
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        self.spans.extend(spans)
        return len(spans)


class Endpoint:
    """Where the stub engine is; may be away."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.headers = {"authorization": "Bearer engine-secret"}
        self.up = asyncio.Event()
        self.up.set()
        self.waiting = 0
        """Calls that wait for it; not those that only look whether it is there."""

    async def ready(self, timeout_s: float) -> None:
        waits = timeout_s > 0
        self.waiting += waits
        try:
            await asyncio.wait_for(self.up.wait(), max(timeout_s, 0.001))
        except TimeoutError as error:
            raise EngineError(f"the engine is not ready after {timeout_s:.1f} s") from error
        finally:
            self.waiting -= waits


@contextlib.asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Serve an app on a free port of this event loop."""
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    # What `Server.serve` does, without its signal handlers and its ticks of a tenth of a second.
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        # Nor its shutdown, which sleeps.
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        for request in list(server.server_state.tasks):
            request.cancel()
        await server.lifespan.shutdown()


class Gateway:
    """A gateway before a stub engine, and what a test needs of both."""

    def __init__(self, url: str, engine_url: str, engine: StubEngine, endpoint: Endpoint, sink: Sink) -> None:
        self.url = url
        self.engine_url = engine_url
        self.engine = engine
        self.endpoint = endpoint
        self.sink = sink
        self.http = httpx.AsyncClient(base_url=url, timeout=20)

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"model": "sql", "messages": [{"role": "user", "content": "Is it open?"}], **fields}

    async def post(self, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=self.body(**fields), headers=headers)

    async def record(self, count: int = 1) -> Span:
        """Return the last of so many records, when they are there."""
        async with asyncio.timeout(10):
            while len(self.sink.spans) < count:
                await asyncio.sleep(0.005)
        assert len(self.sink.spans) == count
        return self.sink.spans[-1]


@pytest.fixture
def open_gateway():
    """Return an async context manager that serves a gateway with the given options, and other routers ``beside`` it.

    It serves ``policy`` with a stub engine, and ``more``.
    """

    @contextlib.asynccontextmanager
    async def opened(
        *,
        beside: Sequence[APIRouter] = (),
        sink: Any = None,
        more: Sequence[ServedPolicy] = (),
        queue_timeout_s: float = 5.0,
        policy: str = "sql",
        of_policy: Mapping[str, Any] = MappingProxyType({}),
        token: str | None = None,
        **options: Any,
    ) -> AsyncIterator[Gateway]:
        engine, sink = StubEngine(), sink or Sink()
        async with serving(engine.app) as engine_url:
            endpoint = Endpoint(engine_url)
            app = FastAPI()
            upstream = Upstream(endpoint, queue_timeout_s=queue_timeout_s)
            policies = [ServedPolicy(policy, upstream, **of_policy), *more]
            answer_in_the_callers_shape(app)
            for router in (gateway_router(policies, sink, **options), *beside):
                if token is None:
                    # To include a router makes each of its routes anew, which takes longer than most of the tests.
                    app.router.routes.extend(router.routes)
                    router = APIRouter(lifespan=router.lifespan_context)
                app.include_router(router, dependencies=[Depends(require_token(token))])
            async with serving(app) as url:
                gateway = Gateway(url, engine_url, engine, endpoint, sink)
                async with gateway.http:
                    yield gateway

    return opened


@pytest.fixture
async def gateway(open_gateway) -> AsyncIterator[Gateway]:
    async with open_gateway() as opened:
        yield opened
