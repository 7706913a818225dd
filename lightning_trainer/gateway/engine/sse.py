"""Server-sent events, from the engine and to callers. Source: WHATWG HTML standard, section 9.2."""

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any

import orjson
from lightning_instrumentation.wire.sse import EventSplitter

DONE = b"[DONE]"


async def events(chunks: AsyncIterable[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield complete events as soon as a chunk completes them, byte for byte, including their blank lines."""
    splitter = EventSplitter()
    async for piece in chunks:
        if whole := splitter.feed(piece):
            yield whole
    if (rest := splitter.finish()).strip():
        yield [rest]


def event_of(data: bytes, name: str | None = None) -> bytes:
    """Encode data as an event."""
    if name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


# What the engine reports about the support of the tokens, which goes into the record and never on to the caller.
#
# The engine (``serving/host/tokens/support_answer.py``) puts it at the very end of a whole answer, or into an event
# of its own. Either can be cut out without parsing the rest: inside a JSON string the quotation marks of the field's
# name would be escaped.

HEADER = "x-lightning-support"
"""Request header: asks for the supports. Response header: the engine has sent all supports that there are."""
_FIELD = b'"lightning_support":'


def without_support(body: bytes) -> tuple[bytes, Mapping[str, Any]]:
    """Return a whole answer without the support that we asked for, and the support by choice."""
    start = body.rfind(b"," + _FIELD)
    if start < 0:
        return body, {}
    return body[:start] + b"}", orjson.loads(body[start + 1 + len(_FIELD) : -1])


def support_in(data: bytes) -> Mapping[str, Any] | None:
    """Return the support by choice that an event of a stream carries; None for any other event."""
    return orjson.loads(data)["lightning_support"] if data.startswith(b"{" + _FIELD) else None
