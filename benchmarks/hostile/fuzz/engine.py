"""An engine that takes any body and answers as vLLM does, with exact ids: the code that is fuzzed is in front of it."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import uvicorn

TEXT = ("The", " café", " is", " open", ".")
_PROMPT_IDS = [11, 12, 13]
_HEADERS = [(b"x-lightning-policy", b"math"), (b"x-lightning-policy-version", b"0")]


class Engine:
    """Plain ASGI, so that the engine is not what is measured."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = bytearray()
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["path"] == "/lightning/version":
            return await _answer(send, 200, b'{"policy":"math","version":0}')
        if scope["path"] == "/tokenize":
            return await _answer(send, 200, b'{"count":3,"max_model_len":512,"tokens":[11,12,13]}')
        body = orjson.loads(raw)
        choices = body.get("n") or 1
        if not isinstance(choices, int) or choices > 4:
            error = {"message": "n is too large", "type": "BadRequestError", "param": "n", "code": 400}
            return await _answer(send, 400, orjson.dumps({"error": error}))
        chat = scope["path"].endswith("/chat/completions")
        base = {"id": f"chatcmpl-{next(self._numbers)}", "created": 1_700_000_000, "model": "math"}
        if chat and body.get("stream") is True:
            return await self._stream(send, base, choices)
        made = [(_chat_choice if chat else _text_choice)(index) for index in range(choices)]
        usage = {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}
        kind = "chat.completion" if chat else "text_completion"
        whole = {**base, "object": kind, "choices": made, "usage": usage, "prompt_token_ids": _PROMPT_IDS}
        await _answer(send, 200, orjson.dumps(whole))

    async def _stream(self, send: Any, base: dict[str, Any], choices: int) -> None:
        headers = [(b"content-type", b"text/event-stream"), *_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for position, index in itertools.product(range(len(TEXT)), range(choices)):
            last = position == len(TEXT) - 1
            choice = {
                "index": index,
                "delta": {"content": TEXT[position]},
                "logprobs": {"content": [_logprob(position)]},
                "finish_reason": "stop" if last else None,
                "token_ids": [100 + position],
            }
            chunk = {**base, "object": "chat.completion.chunk", "choices": [choice]}
            if position == 0:
                chunk["prompt_token_ids"] = _PROMPT_IDS
            await send({"type": "http.response.body", "body": _event(chunk), "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _logprob(position: int) -> dict[str, Any]:
    text = TEXT[position]
    return {"token": text, "logprob": -0.5 - position / 16, "bytes": list(text.encode()), "top_logprobs": []}


def _chat_choice(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": "".join(TEXT), "refusal": None, "tool_calls": []},
        "logprobs": {"content": [_logprob(position) for position in range(len(TEXT))]},
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": list(range(100, 100 + len(TEXT))),
    }


def _text_choice(index: int) -> dict[str, Any]:
    logprobs = [_logprob(position)["logprob"] for position in range(len(TEXT))]
    return {
        "index": index,
        "text": "".join(TEXT),
        "logprobs": {
            "tokens": list(TEXT),
            "token_logprobs": logprobs,
            "text_offset": [0] * len(TEXT),
            "top_logprobs": [{text: value} for text, value in zip(TEXT, logprobs, strict=True)],
        },
        "finish_reason": "stop",
        "prompt_token_ids": _PROMPT_IDS,
        "token_ids": list(range(100, 100 + len(TEXT))),
    }


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


async def _answer(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Server(uvicorn.Server):
    """A server that leaves signals alone."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an app in this event loop and yield its URL."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    server = _Server(uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
