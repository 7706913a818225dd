"""The daemon's HTTP server."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from socket import socket
from ssl import SSLContext
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from lightning_trainer.daemon.http.connections import BoundedProtocol
from lightning_trainer.daemon.http.sockets import listen
from lightning_trainer.daemon.http.tls_listener import TlsListener

_ENDED_WITH_US = "timeout graceful shutdown exceeded"
_CANCELLED_S = 5.0
"""How long cancelled requests have to end, so that none of them finds the store closed."""


class _Server(uvicorn.Server):
    """uvicorn's server with TLS of our own; leaves signals to the daemon, which has more to stop than HTTP."""

    def __init__(self, config: uvicorn.Config, tls: Callable[[], SSLContext] | None, inside: Sequence[socket]) -> None:
        super().__init__(config)
        self._tls = tls
        self._inside = inside

    @contextlib.contextmanager
    def capture_signals(self):
        yield

    async def startup(self, sockets: list[socket] | None = None) -> None:
        if self._tls is None:
            await super().startup(sockets)
            return
        await super().startup(list(self._inside))
        listeners = [
            TlsListener(listener, self._tls, self._protocol, self.server_state.connections)
            for listener in sockets or ()
            if listener not in self._inside
        ]
        self.servers = cast(Any, [*self.servers, *listeners])

    def _protocol(self) -> BoundedProtocol:
        return BoundedProtocol(self.config, self.server_state, self.lifespan.state)


@asynccontextmanager
async def serving(
    app: FastAPI,
    listener: socket,
    *,
    tls: Callable[[], SSLContext] | None = None,
    inside: Sequence[socket] = (),
) -> AsyncIterator[None]:
    """Serve on a bound socket.

    Args:
        tls: returns the TLS context for the next connection; None serves plain HTTP.
        inside: bound sockets on loopback that serve plain HTTP whatever ``tls`` is.

    Raises:
        AddressTakenError: another process began to listen there meanwhile.
    """
    for one in (listener, *inside):
        listen(one)
    server = _Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",  # the app answers a handshake as any request, within the same bounds (gateway/http_errors.py)
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            lifespan="on",
        ),
        tls,
        inside,
    )
    task = asyncio.create_task(server.serve(sockets=[listener, *inside]))
    while not server.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        with _open_requests_may_end():
            server.should_exit = True
            await task
            if cancelled := list(server.server_state.tasks):
                await asyncio.wait(cancelled, timeout=_CANCELLED_S)


@contextlib.contextmanager
def _open_requests_may_end() -> Iterator[None]:
    """Keep uvicorn quiet about requests that wait for something (runs, pages, long polls) and end with the daemon."""

    def is_an_error(record: logging.LogRecord) -> bool:
        error = record.exc_info and record.exc_info[1]
        return not isinstance(error, asyncio.CancelledError) and _ENDED_WITH_US not in record.getMessage()

    log = logging.getLogger("uvicorn.error")
    log.addFilter(is_an_error)
    try:
        yield
    finally:
        log.removeFilter(is_an_error)
