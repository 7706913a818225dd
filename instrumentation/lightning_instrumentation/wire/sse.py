"""Server-sent events out of a stream of bytes, however it was cut. Source: WHATWG HTML, "Server-sent events"."""

from __future__ import annotations

import re

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class EventSplitter:
    def __init__(self) -> None:
        self._rest = b""

    @property
    def waiting(self) -> int:
        """Bytes of an event whose end has not come."""
        return len(self._rest)

    def take(self, data: bytes) -> list[bytes]:
        """Return the events that are complete now, each with the blank line that ends it."""
        # An end that is cut in two is at most three bytes before the new data.
        search_from = max(0, len(self._rest) - 3)
        held = self._rest + data
        events: list[bytes] = []
        start = 0
        for end in _END.finditer(held, search_from):
            events.append(held[start : end.end()])
            start = end.end()
        self._rest = held[start:]
        return events

    def rest(self) -> bytes:
        """Return and forget what has no end."""
        rest, self._rest = self._rest, b""
        return rest


def data_of(event: bytes) -> bytes:
    """Return an event's data; empty for a comment or an event without data."""
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def with_data(event: bytes, data: bytes) -> bytes:
    """Return the event with other data (of one line) and everything else as it was."""
    lines = event.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith(b"data:"))
    ending = lines[first][len(lines[first].rstrip(b"\r\n")) :]
    head = b"data: " if lines[first].startswith(b"data: ") else b"data:"
    kept = [line for number, line in enumerate(lines) if number <= first or not line.startswith(b"data:")]
    kept[first] = head + data + ending
    return b"".join(kept)
