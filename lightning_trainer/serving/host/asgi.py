"""The ASGI types, and a request body that is read before the app reads it."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

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
