"""The daemon's HTTP server, and the file that says where it is."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import socket

import uvicorn
from fastapi import FastAPI

from lightning_trainer.daemon.http.connections import BoundedProtocol
from lightning_trainer.daemon.http.sockets import listen


class _Server(uvicorn.Server):
    """Leaves signals to the daemon, which has more to stop than HTTP."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield


@asynccontextmanager
async def serving(app: FastAPI, listener: socket) -> AsyncIterator[None]:
    """Serve on a bound socket.

    Raises:
        AddressTakenError: somebody else began to listen there meanwhile.
    """
    listen(listener)
    server = _Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            lifespan="on",
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await task


@contextlib.contextmanager
def announced(path: Path, url: str) -> Iterator[None]:
    """``daemon.json``: where a running daemon is; gone when it is."""
    path.write_text(json.dumps({"pid": os.getpid(), "url": url}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
