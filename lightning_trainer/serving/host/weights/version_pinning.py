"""Version pinning: a request that may generate gets one version of one policy for its whole response."""

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

# The ASGI types, and a request body that is read before the app reads it.

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


async def read_body(receive: Receive) -> bytes | None:
    """Return the whole body, or None if the caller hung up before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def replaying(body: bytes | None, receive: Receive) -> Receive:
    """Return a ``receive`` that gives the app a body that was already read, then whatever comes after it.

    Args:
        body: None if the caller hung up, which the app is then told.
    """
    waiting: list[Message] = [
        {"type": "http.disconnect"} if body is None else {"type": "http.request", "body": body, "more_body": False}
    ]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


POLICY_HEADER = "x-lightning-policy"
VERSION_HEADER = "x-lightning-policy-version"
"""On an answer, the version that sampled it; on a request to an engine that serves adapters, the one that it wants."""


class Sampler(NamedTuple):
    """The policy and version that answer a request."""

    policy: str
    version: int


class PinnedRequest(NamedTuple):
    """A request that is bound to one version."""

    receive: Receive
    """Where the app reads the request, which may differ from what was sent."""
    sampler: Sampler | None
    """None if the request names no policy; vLLM then says what is wrong with it."""


class VersionPinning(Protocol):
    """Binds each request to one version; every kind of publisher does so in its own way."""

    def pin(self, scope: Message, receive: Receive) -> AbstractAsyncContextManager[PinnedRequest]:
        """Hold the version while the block runs."""
        ...
