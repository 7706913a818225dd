"""Bounds on what a peer may use before it has asked for anything: time, header bytes, connections.

uvicorn bounds none of them while it reads a request's head, and the token is only checked after that.
"""

import asyncio
import math
import resource
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_KEPT_FREE = 256
"""Descriptors for the store, the engines' connections and the daemon's own files."""
_LINGER_S = 1.0


def most_connections() -> int:
    """Return how many connections may be open at once, by the limit of the process's descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 65536 if soft == resource.RLIM_INFINITY else max(64, soft - _KEPT_FREE)


class _LingeringTransport:
    """A transport whose ``close`` lets a peer that is still sending read the answer first.

    A connection that is closed with bytes unread is reset: the answer is lost, and the peer thinks that the daemon is
    gone.
    """

    def __init__(self, transport: asyncio.Transport, protocol: "BoundedProtocol") -> None:
        self._transport, self._protocol, self._lingers = transport, protocol, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        if self._lingers or self._transport.is_closing():
            return
        if not self._protocol.body_is_coming:
            self._transport.close()
            return
        self._lingers = True
        self._protocol.drop_what_comes()
        if self._transport.can_write_eof():  # not with TLS: there the answer's length says where it ends
            self._transport.write_eof()
        self._protocol.loop.call_later(_LINGER_S, self._transport.close)


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with bounds on the time and size of a request's head, and on the number of connections."""

    head_s = 20.0
    """Seconds from the connection, or the first byte of a further request, to the end of the head."""
    head_bytes = 64 * 1024
    connections_at_once = most_connections()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._refused = False
        self.body_is_coming = False
        """Whether the end of a request is still to be read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, _LingeringTransport(transport, self))
        self._await_head()
        if len(self.connections) > self.connections_at_once:
            make_room(self.connections)  # this one, if all others are at work

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        # Checked after the parser: what came with the end of the head may belong to the body.
        if self._head_timer is not None and self._head_bytes > self.head_bytes:
            self._refuse(431, b"Request Header Fields Too Large", f"the head is longer than {self.head_bytes} bytes")

    def on_message_begin(self) -> None:
        if self._head_timer is None:
            self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self.body_is_coming = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.body_is_coming = False
        super().on_message_complete()

    def drop_what_comes(self) -> None:
        """Keep reading, and discard what comes."""
        self._refused = True
        self.flow.resume_reading()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing, while uvicorn would ask for a websocket library: the app refuses what it must."""

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.head_s, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._refuse(408, b"Request Timeout", f"no request came within {self.head_s:g} s")

    @property
    def silent_until(self) -> float | None:
        """Return when it is given up unless a request comes, by the loop's clock; None while it is at work."""
        return None if self._head_timer is None else self._head_timer.when()

    def refuse_for_room(self) -> None:
        """Answer 503 and close, so that another connection can take this one's place; with TLS, abort at once."""
        self._refuse(503, b"Service Unavailable", "too many connections are open; try again")
        if not self.transport.can_write_eof():
            # With TLS the other end has a part in closing, and until it has done that there is no room.
            self.connections.discard(self)
            self.transport.abort()

    def _refuse(self, status: int, phrase: bytes, sentence: str) -> None:
        self._stop_waiting()
        if self._refused or self.transport.is_closing():
            return
        body = sentence.encode()
        head = b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, phrase, len(body)) + body)
        # Closed with bytes unread, the connection would be reset, and the peer would lose the answer.
        self._refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)


def make_room(connections: Iterable[object], before: float = math.inf) -> bool:
    """Give up the connection that has asked for nothing for longest; return False if there is none to give up.

    Args:
        before: only a connection that would be given up by itself before this time, by the loop's clock.
    """
    silent = [
        (one.silent_until, one)
        for one in connections
        if isinstance(one, BoundedProtocol) and one.silent_until is not None and one.silent_until < before
    ]
    if silent:
        min(silent, key=itemgetter(0))[1].refuse_for_room()
    return bool(silent)
