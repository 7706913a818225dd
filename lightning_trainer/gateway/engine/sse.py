"""Server-sent events of the engine, and events to callers. Source: WHATWG HTML standard, section 9.2."""

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any

import orjson
from lightning_instrumentation.wire.sse import EventSplitter

DONE = b"[DONE]"


async def events(chunks: AsyncIterable[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the events that each piece completes, as they were sent, their empty lines included."""
    splitter = EventSplitter()
    async for piece in chunks:
        if whole := splitter.feed(piece):
            yield whole
    if (rest := splitter.finish()).strip():
        yield [rest]


def event_of(data: bytes, name: str | None = None) -> bytes:
    """Return data as an event."""
    if name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


# What the engine says about the support of the tokens, which goes into the record and never on to the caller.
#
# The engine (``serving/host/tokens/support_answer.py``) puts it at the very end of a whole answer, or into an event
# of its own. Either can be cut out without reading the rest: inside of a JSON text the marks' quotation marks would
# be escaped.

HEADER = "x-lightning-support"
"""On a request: asks for it. On an answer: the engine has said all that there is to say."""
_FIELD = b'"lightning_support":'


def without_support(body: bytes) -> tuple[bytes, Mapping[str, Any]]:
    """Return a whole answer as it would be without our asking, and what was said, by choice."""
    start = body.rfind(b"," + _FIELD)
    if start < 0:
        return body, {}
    return body[:start] + b"}", orjson.loads(body[start + 1 + len(_FIELD) : -1])


def support_in(data: bytes) -> Mapping[str, Any] | None:
    """Return what an event of a stream says by choice, None where it is any other event."""
    return orjson.loads(data)["lightning_support"] if data.startswith(b"{" + _FIELD) else None
