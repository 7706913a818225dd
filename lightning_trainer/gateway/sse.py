"""Server-sent events, cut out of whatever pieces the network delivers.

Source: WHATWG HTML standard, section 9.2 (an event ends with an empty line).
"""

import re
from collections.abc import AsyncIterable, AsyncIterator

DONE = b"[DONE]"
_END = re.compile(rb"\r?\n\r?\n")
_LONGEST_END = 4


async def events(chunks: AsyncIterable[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the events that each piece completes, as they were sent, their empty lines included."""
    rest = bytearray()
    async for piece in chunks:
        # An event may be megabytes long (what tokens were drawn from): what was looked at is not looked at again.
        unseen = max(0, len(rest) - _LONGEST_END + 1)
        rest += piece
        whole: list[bytes] = []
        start = 0
        for end in [found.end() for found in _END.finditer(rest, unseen)]:
            whole.append(bytes(rest[start:end]))
            start = end
        del rest[:start]
        if whole:
            yield whole
    if rest.strip():
        yield [bytes(rest)]


def data_of(event: bytes) -> bytes | None:
    """Return an event's data; None for one without (a keep-alive comment)."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and b"\n" not in event[:-2]:
        return event[6:-2]  # one line, as the engine writes it
    lines = [line.removeprefix(b"data:").removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def event_of(data: bytes, name: str | None = None) -> bytes:
    """Return data as an event."""
    if name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
