"""Authorization in front of vLLM's app: which requests are let in, and which version answers each of them.

A request that may generate keeps one version for its whole response, including the last byte of a stream. Two headers
of the response name the policy and the version that sampled it; if the prompt keeps sampled ids, a third says how many.
This is a pure ASGI wrapper that buffers no answer; ``support_answer`` buffers whole JSON answers if asked for support.
"""

import hmac
import json

from lightning_trainer.serving.host.tokens.continuation import KEPT_HEADER, Turn, begin_turn
from lightning_trainer.serving.host.tokens.support_answer import answer_with_support
from lightning_trainer.serving.host.weights.version_pinning import (
    POLICY_HEADER,
    VERSION_HEADER,
    App,
    Message,
    Receive,
    Sampler,
    Send,
    VersionPinning,
)

OWN_PREFIX = "/lightning/"
_NEVER_SAMPLES = ("/tokenize", "/detokenize")


class AuthMiddleware:
    """Checks the token, sends ``/lightning/...`` to our routes and the rest to vLLM's app."""

    def __init__(self, vllm_app: App, own_app: App, pinning: VersionPinning, token: str):
        self._vllm_app = vllm_app
        self._own_app = own_app
        self._pinning = pinning
        self._authorization = f"Bearer {token}".encode("latin-1")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._vllm_app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008, "reason": "the engine speaks HTTP only"})
        elif not self._authorized(scope):
            await _refuse(send)
        elif scope["path"].startswith(OWN_PREFIX):
            await self._own_app(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] not in _NEVER_SAMPLES:
            async with self._pinning.pin(scope, receive) as pinned:
                turn = begin_turn(scope["headers"])
                marked = _marking(send, pinned.sampler, turn)
                await answer_with_support(self._vllm_app, scope, pinned.receive, marked)
        else:
            begin_turn(scope["headers"])  # a prompt that is only tokenized also gets the ids that were sampled
            await self._vllm_app(scope, receive, send)

    def _authorized(self, scope: Message) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self._authorization)


def _marking(send: Send, sampler: Sampler | None, turn: Turn | None) -> Send:
    if sampler is None:
        return send
    marks = [
        (POLICY_HEADER.encode("latin-1"), sampler.policy.encode("latin-1")),
        (VERSION_HEADER.encode("latin-1"), str(sampler.version).encode("latin-1")),
    ]

    async def send_marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = []
            if turn is not None and turn.kept_tokens:
                kept = [(KEPT_HEADER.encode("latin-1"), str(turn.kept_tokens).encode("latin-1"))]
            message = {**message, "headers": [*message.get("headers", []), *marks, *kept]}
        await send(message)

    return send_marked


async def _refuse(send: Send) -> None:
    error = {"message": "the engine answers its daemon only", "type": "authentication_error", "code": 401}
    body = json.dumps({"error": error}).encode("utf-8")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("latin-1"))]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
