"""A process: the scripted inference server, and a telemetry receiver that takes, refuses or ignores what it gets.

    python -m benchmarks.common.servers.engine [--token-pause-s 0.002] [--keep-telemetry]

``GET /truth`` returns, and forgets, what the server answered: the benchmark's authority on calls, agents, and token
ids. With ``--keep-telemetry``, ``GET /telemetry`` does the same with the bodies of spans that it was sent, in base64.
Plain ASGI on uvicorn, and answers of one size are serialized once, so that this server is not what is measured.
"""

import argparse
import asyncio
import base64
import json
import socket
from typing import Any

import orjson
import uvicorn

from benchmarks.common.processes import end_with_parent
from benchmarks.common.servers import other_answers as other
from benchmarks.common.servers.answers import chat_script, chunks, completion

_HEADERS = [(b"x-lightning-policy", b"policy"), (b"x-lightning-policy-version", b"1")]
_ID_DIGITS = len('{"id":"chatcmpl-000000001"')


class Engine:
    def __init__(self, token_pause_s: float, *, keep_telemetry: bool = False) -> None:
        self._token_pause_s = token_pause_s
        self._telemetry: list[str] | None = [] if keep_telemetry else None
        self._truth: list[dict[str, Any]] = []
        self._kept: dict[tuple, list[bytes]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await _read(receive)
        path = scope["path"]
        if path.endswith("/v1/traces"):
            await self._spans(path, body, send)
        elif path == "/telemetry":
            taken, self._telemetry = self._telemetry, [] if self._telemetry is not None else None
            await _answer(send, 200, orjson.dumps(taken or []))
        elif path == "/truth":
            told, self._truth = self._truth, []
            await _answer(send, 200, orjson.dumps(told))
        elif path == "/lightning/version":
            await _answer(send, 200, b'{"policy":"policy","version":1}')
        elif path.endswith("/chat/completions"):
            await self._chat(json.loads(body), send)
        elif path.endswith("/responses"):
            await self._other(json.loads(body), send, other.responses_script, other.response, other.response_events)
        elif path.endswith("/messages"):
            await self._other(json.loads(body), send, other.messages_script, other.message, other.message_events)
        else:
            await _answer(send, 404, b'{"error":{"message":"there is no such place"}}')

    async def _spans(self, path: str, body: bytes, send: Any) -> None:
        if self._telemetry is not None:
            self._telemetry.append(base64.b64encode(body).decode())
        if path.startswith("/hang/"):
            await asyncio.sleep(3600)
        await _answer(send, 500 if path.startswith("/fail/") else 200, b"", b"application/x-protobuf")

    async def _chat(self, body: dict[str, Any], send: Any) -> None:
        script = chat_script(body)
        sized = script.agent is None and script.rollout is None
        streamed = bool(body.get("stream"))
        if not sized:
            self._truth.append({**script.truth(), "streamed": streamed})
        key = (body.get("model"), streamed, *(bool(body.get(name)) for name in ("return_token_ids", "logprobs")))
        said = self._kept.get(key) if sized else None
        if said is None:
            whole = chunks(script, body) if streamed else [completion(script, body)]
            said = [orjson.dumps(part) for part in whole]
            if sized:
                self._kept[key] = said
        # Kept answers differ only in their id.
        named = b'{"id":"' + script.response_id.encode() + b'"'
        parts = [named + part[_ID_DIGITS:] for part in said]
        if streamed:
            await self._stream(send, [b"data: " + part + b"\n\n" for part in [*parts, b"[DONE]"]])
        else:
            await _answer(send, 200, parts[0])

    async def _other(self, body: dict[str, Any], send: Any, decide: Any, whole: Any, events: Any) -> None:
        script = decide(body)
        self._truth.append({**script.truth(), "prompt_ids": None, "response_ids": None})
        if body.get("stream"):
            said = [f"event: {name}\ndata: ".encode() + orjson.dumps(e) + b"\n\n" for name, e in events(script, body)]
            await self._stream(send, said)
        else:
            await _answer(send, 200, orjson.dumps(whole(script, body)))

    async def _stream(self, send: Any, events: list[bytes]) -> None:
        headers = [(b"content-type", b"text/event-stream"), *_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            if self._token_pause_s:
                await asyncio.sleep(self._token_pause_s)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _read(receive: Any) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Any, status: int, body: bytes, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--token-pause-s", type=float, default=0.0)
    parser.add_argument("--keep-telemetry", action="store_true")
    options = parser.parse_args()
    end_with_parent()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
    engine = Engine(options.token_pause_s, keep_telemetry=options.keep_telemetry)
    config = uvicorn.Config(engine, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
