"""Sends single requests to the application: by calling it in process, as a server does, or over sockets."""

import asyncio
import contextlib
import ssl
import traceback
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI

from lightning_trainer.daemon.http.server import serving
from lightning_trainer.daemon.http.sockets import bind

_PATIENCE_S = 120.0
_HOST = [(b"host", b"127.0.0.1:8321")]


def place_of(error: BaseException) -> str:
    """Return file and line of our own code in which an error was raised."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/lightning_trainer/" in frame.filename]
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "none of our files"


class Sender(Protocol):
    async def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        """Return the status and the text of the answer; status 0 if there was no answer."""
        ...


class InProcess:
    """Calls the application in process."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.reached: set[tuple[str, str]] = set()
        """Methods and paths of the routes that requests reached."""

    async def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        named, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote_to_bytes(named).decode(errors="replace"),
            "raw_path": named.encode(errors="replace"),
            "query_string": query.encode(errors="replace"),
            "root_path": "",
            "headers": _HOST + [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8321),
        }
        given = False
        ended = asyncio.Event()
        status, said = 0, bytearray()

        async def receive() -> dict[str, Any]:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif len(said) < 2000:
                said.extend(message.get("body", b""))

        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._app(scope, receive, send)
        except Exception as error:
            return 0, f"{type(error).__name__}: {str(error)[:80]} at {place_of(error)}"
        finally:
            ended.set()
            if (route := scope.get("route")) is not None:
                self.reached.add((method, route.path))
        return status, said.decode(errors="replace")


class OverSockets:
    """HTTP/1.1 by hand, a connection a request, so that it sends what a client's library would refuse to send."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port, self._tls = port, tls

    @classmethod
    @asynccontextmanager
    async def to(cls, app: FastAPI) -> AsyncIterator["OverSockets"]:
        """Serve the application as the daemon does."""
        listener = bind("127.0.0.1", 0)
        with contextlib.closing(listener):
            async with serving(app, listener):
                yield cls(listener.getsockname()[1])

    async def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(
            [
                f"{method} {path} HTTP/1.1",
                "host: 127.0.0.1",
                *lines,
                f"content-length: {len(body)}",
                "connection: close",
            ]
        )
        try:
            async with asyncio.timeout(_PATIENCE_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
                try:
                    writer.write(head.encode("latin-1", "replace") + b"\r\n\r\n" + body)
                    answer = await reader.read(4096)
                    while await reader.read(65536):
                        pass
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            return 0, f"{type(error).__name__}: {error} after a body of {len(body)} bytes"
        first = answer.split(b" ", 2)
        return (
            (int(first[1]), answer.decode(errors="replace"))
            if len(first) > 1 and first[1].isdigit()
            else (0, repr(answer))
        )
