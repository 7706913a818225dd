"""Splits a stream of bytes into events, however it is chunked.

Server-sent events (source: WHATWG HTML, "Server-sent events"), lines of JSON, and Amazon's event stream (source:
``application/vnd.amazon.eventstream``, AWS documentation "Event stream encoding").
"""

from __future__ import annotations

import re
from collections.abc import Callable

_END = re.compile(rb"\r?\n\r?\n|\r\r")
_LONGEST_END = 4


class EventSplitter:
    """Splits server-sent events, byte for byte; the gateway reads the engine's answers with it too."""

    data_of: Callable[[bytes], bytes]

    def __init__(self) -> None:
        self._held = bytearray()
        self.data_of = data_of

    @property
    def waiting(self) -> int:
        """Return how many bytes of the incomplete event are held."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are now complete, each with the blank line that ends it.

        An event may be megabytes long and arrive in thousands of pieces: no byte is searched or copied twice.
        """
        held = self._held
        search_from = max(0, len(held) - _LONGEST_END + 1)
        held += data
        events: list[bytes] = []
        start = 0
        for end in [found.end() for found in _END.finditer(held, search_from)]:
            events.append(bytes(held[start:end]))
            start = end
        del held[:start]
        return events

    def finish(self) -> bytes:
        """Return and drop the incomplete event."""
        rest = bytes(self._held)
        self._held.clear()
        return rest


def data_of(event: bytes) -> bytes:
    """Return an event's data; empty for a comment or an event without data."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]  # one line, as nearly every server writes it
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return lines[0] if len(lines) == 1 else b"\n".join(lines)


def with_data(event: bytes, data: bytes) -> bytes:
    """Return the event with other data (one line) and everything else unchanged."""
    lines = event.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith(b"data:"))
    ending = lines[first][len(lines[first].rstrip(b"\r\n")) :]
    head = b"data: " if lines[first].startswith(b"data: ") else b"data:"
    kept = [line for number, line in enumerate(lines) if number <= first or not line.startswith(b"data:")]
    kept[first] = head + data + ending
    return b"".join(kept)


class LineSplitter(EventSplitter):
    """Splits lines: each is an event and its data."""

    def __init__(self) -> None:
        super().__init__()
        self.data_of = bytes.strip

    def feed(self, data: bytes) -> list[bytes]:
        first, *rest = data.split(b"\n")  # no byte that waits is searched again
        self._held += first
        if not rest:
            return []
        *whole, last = rest
        lines = [bytes(self._held), *whole]
        self._held[:] = last
        return [line + b"\n" for line in lines]


_PRELUDE, _CHECKSUM = 12, 4
"""In bytes: the prelude (total length, headers' length, and a checksum), and the checksum at the end."""


class AmazonSplitter(EventSplitter):
    """Splits messages: each is an event, whose data is the payload."""

    def __init__(self) -> None:
        super().__init__()
        self.data_of = _payload

    def feed(self, data: bytes) -> list[bytes]:
        self._held += data
        events: list[bytes] = []
        while len(self._held) >= _PRELUDE:
            size = int.from_bytes(self._held[:4], "big")
            if not _PRELUDE + _CHECKSUM <= size <= len(self._held):
                break
            events.append(bytes(self._held[:size]))
            del self._held[:size]
        return events


def _payload(event: bytes) -> bytes:
    headers = int.from_bytes(event[4:8], "big")
    return event[_PRELUDE + headers : -_CHECKSUM]
