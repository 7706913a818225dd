"""TLS connections from their first byte to the end of the handshake, bounded in time and number as request heads are.

asyncio's own server would wait a minute for a handshake, would not count the connections that are in the middle of one,
and would close on a client that speaks plain HTTP without telling it why.
"""

import asyncio
import contextlib
import json
import logging
import math
import socket
import ssl
from collections.abc import Callable, Collection

from lightning_instrumentation.access.proof import SPEAK_TLS

from lightning_trainer.daemon.http.connections import BoundedProtocol, make_room

_log = logging.getLogger(__name__)

_HANDSHAKE = b"\x16"
"""First byte of a TLS record of a handshake. Source: RFC 8446, section 5.1."""
_AT_ONCE = 64
_PAUSE_S = 1.0
"""How long until connections are accepted again after an error, as when no descriptors are left."""
_LINGER_S = 1.0
_SENTENCE = json.dumps(
    {"error": {"message": "this port speaks TLS: write https:// in the daemon's URL", "type": "invalid_request_error"}}
).encode()
_PLAIN_ANSWER = (
    b"HTTP/1.1 %d Upgrade Required\r\nupgrade: TLS/1.2, HTTP/1.1\r\nconnection: upgrade, close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (SPEAK_TLS, len(_SENTENCE), _SENTENCE)
)


class TlsListener:
    """Accepts TLS connections on one listening socket, in place of an asyncio server.

    Args:
        context: returns the TLS context for the next connection.
        make: makes the protocol above TLS.
        connections: the open ones whose handshake is over.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext],
        make: Callable[[], asyncio.Protocol],
        connections: Collection[object],
    ) -> None:
        self._listener = listener
        self._context = context
        self._make = make
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._arriving: dict[asyncio.Task[None], tuple[socket.socket, float]] = {}
        """Handshakes under way, with socket and the time at which each is given up; oldest first."""
        self._closed = False
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more connections, and drop those whose handshake has not ended."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._listener)
        for task in list(self._arriving):
            self._drop(task)

    async def wait_closed(self) -> None:
        """Wait until the dropped handshakes have ended."""
        if self._arriving:
            await asyncio.wait(list(self._arriving))

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("no connection can be taken for a moment: %s", error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE_S, self._listen)
                return
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._make_room()
            task = self._loop.create_task(self._arrive(connection))
            self._arriving[task] = connection, self._loop.time() + BoundedProtocol.head_s
            task.add_done_callback(self._arrived)

    def _make_room(self) -> None:
        """If there are too many connections, give up the one that has been arriving, or idle, for longest."""
        if len(self._arriving) + len(self._connections) < BoundedProtocol.connections_at_once:
            return
        oldest = next(iter(self._arriving), None)
        until = math.inf if oldest is None else self._arriving[oldest][1]
        if not make_room(self._connections, before=until) and oldest is not None:
            self._drop(oldest)

    def _drop(self, task: asyncio.Task[None]) -> None:
        connection, _ = self._arriving.pop(task)
        task.cancel()
        with contextlib.suppress(OSError):  # whatever holds the socket sees it end
            connection.shutdown(socket.SHUT_RDWR)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._arriving.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection ended with an unexpected error", exc_info=error)

    async def _arrive(self, connection: socket.socket) -> None:
        ours = True
        """Whether the socket has to be closed here: a transport, once it has the socket, closes it by itself."""
        try:
            async with asyncio.timeout(BoundedProtocol.head_s):
                first = await self._first_byte(connection)
                if first == _HANDSHAKE:
                    ours = False
                    await self._loop.connect_accepted_socket(
                        self._make,
                        connection,
                        ssl=self._context(),
                        ssl_handshake_timeout=BoundedProtocol.head_s,
                        ssl_shutdown_timeout=_LINGER_S,
                    )
                elif first:
                    await self._answer_in_plain(connection)
        except OSError:  # TimeoutError and ssl.SSLError, too
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        finally:
            if ours:
                connection.close()

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """Return the connection's first byte without taking it from the socket."""
        readable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(connection, lambda: readable.done() or readable.set_result(None))
        try:
            await readable
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)

    async def _answer_in_plain(self, connection: socket.socket) -> None:
        await self._loop.sock_sendall(connection, _PLAIN_ANSWER)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):  # with bytes unread, closing would reset the connection
            async with asyncio.timeout(_LINGER_S):
                while await self._loop.sock_recv(connection, 65536):
                    pass
