"""Server-sent events, cut out of whatever pieces the network delivers.

Source: WHATWG HTML standard, section 9.2 (an event ends with an empty line).
"""

import re
from collections.abc import AsyncIterable, AsyncIterator

DONE = b"[DONE]"
_END = re.compile(rb"\r?\n\r?\n")


async def events(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield each event as it was sent, its empty line included, as soon as it is whole."""
    buffer = b""
    async for chunk in chunks:
        buffer += chunk
        while (end := _END.search(buffer)) is not None:
            yield buffer[: end.end()]
            buffer = buffer[end.end() :]
    if buffer.strip():
        yield buffer


def data_of(event: bytes) -> bytes | None:
    """Return an event's data; None for one without (a keep-alive comment)."""
    lines = [line.removeprefix(b"data:").removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def event_of(data: bytes) -> bytes:
    """Return data as an event."""
    return b"data: " + data + b"\n\n"
