"""Server-sent events of the engine, and events to callers. Source: WHATWG HTML standard, section 9.2."""

from collections.abc import AsyncIterable, AsyncIterator

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
