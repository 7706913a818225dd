"""Version pinning: a request that may generate gets one version of one policy for the whole of its response."""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

# The ASGI types, and a request body that is read before the app reads it.

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


async def read_body(receive: Receive) -> bytes | None:
    """Return the whole body, or None when the caller hung up before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def replaying(body: bytes | None, receive: Receive) -> Receive:
    """Give the app a body that was read already (None: that the caller hung up), and what comes after it."""
    waiting: list[Message] = [
        {"type": "http.disconnect"} if body is None else {"type": "http.request", "body": body, "more_body": False}
    ]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


POLICY_HEADER = "x-lightning-policy"
VERSION_HEADER = "x-lightning-policy-version"
"""On an answer: what sampled it. On a request to an engine of adapters: the version that is asked for."""


class Sampler(NamedTuple):
    policy: str
    version: int


class PinnedRequest(NamedTuple):
    receive: Receive
    """What the app reads, which may differ from what was sent."""
    sampler: Sampler | None
    """None where the request names no policy; vLLM says what is wrong with it."""


class VersionPinning(Protocol):
    def pin(self, scope: Message, receive: Receive) -> AbstractAsyncContextManager[PinnedRequest]:
        """Hold the version while the block runs."""
        ...
