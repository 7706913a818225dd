"""Events out of a stream of bytes, however it was cut.

Server-sent events (source: WHATWG HTML, "Server-sent events"), lines of JSON, and Amazon's event stream (source:
``application/vnd.amazon.eventstream``, AWS documentation "Event stream encoding").
"""

from __future__ import annotations

import re
from collections.abc import Callable

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class EventSplitter:
    data_of: Callable[[bytes], bytes]

    def __init__(self) -> None:
        self._rest = b""
        self.data_of = data_of

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


class LineSplitter(EventSplitter):
    """Each line is an event and its data."""

    def __init__(self) -> None:
        super().__init__()
        self.data_of = bytes.strip

    def take(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line + b"\n" for line in lines]


_PRELUDE, _CHECKSUM = 12, 4
"""Bytes: length of all, length of the headers and a checksum; and the checksum at the end."""


class AmazonSplitter(EventSplitter):
    """Each message is an event; its data is its payload."""

    def __init__(self) -> None:
        super().__init__()
        self.data_of = _payload

    def take(self, data: bytes) -> list[bytes]:
        self._rest += data
        events: list[bytes] = []
        while len(self._rest) >= _PRELUDE:
            size = int.from_bytes(self._rest[:4], "big")
            if not _PRELUDE + _CHECKSUM <= size <= len(self._rest):
                break
            events.append(self._rest[:size])
            self._rest = self._rest[size:]
        return events


def _payload(event: bytes) -> bytes:
    headers = int.from_bytes(event[4:8], "big")
    return event[_PRELUDE + headers : -_CHECKSUM]
