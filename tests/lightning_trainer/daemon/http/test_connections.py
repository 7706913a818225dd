"""Peers that send nothing, or no end of it, take little and hold up nobody; over real sockets."""

import asyncio
import contextlib
import logging

import pytest
from fastapi import FastAPI, HTTPException, Request

from lightning_trainer.daemon.http.connections import BoundedProtocol
from lightning_trainer.daemon.http.server import serving
from lightning_trainer.daemon.http.sockets import bind

_ASKED = b"GET /ok HTTP/1.1\r\nhost: daemon\r\n\r\n"


@pytest.fixture
async def port():
    app = FastAPI()

    @app.get("/ok")
    async def ok() -> str:
        return "fine"

    @app.post("/ok")
    async def taken(request: Request) -> int:
        return len(await request.body())

    @app.post("/refused")
    async def refused() -> None:
        raise HTTPException(413)

    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        async with serving(app, listener):
            yield listener.getsockname()[1]


async def _said(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(30):
        return await reader.read()


async def _status(port: int, *sent: bytes) -> bytes:
    """Return the first line that is answered to what is sent, with the connection closed behind it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        for part in sent:
            writer.write(part)
            await writer.drain()
    answer = (await _said(reader)).partition(b"\r\n")[0]
    writer.close()
    return answer


async def test_who_asks_for_nothing_is_closed(port, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_s", 0.1)
    assert await _status(port) == b"HTTP/1.1 408 Request Timeout"
    assert await _status(port, b"GET /ok HTT") == b"HTTP/1.1 408 Request Timeout"


async def test_the_next_request_of_a_connection_has_its_own_time(port, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_s", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(_ASKED)
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b'fine"')).startswith(b"HTTP/1.1 200 OK")
        await asyncio.sleep(0.2)
    writer.write(b"GET /ok")
    assert (await _said(reader)).split(b"\r\n")[0].endswith(b"408 Request Timeout")
    writer.close()


async def test_a_head_without_end_is_not_read(port):
    lines = [b"GET /ok HTTP/1.1\r\n", *(b"x-%d: %s\r\n" % (number, b"y" * 1000) for number in range(1000))]
    assert await _status(port, *lines) == b"HTTP/1.1 431 Request Header Fields Too Large"


async def test_a_body_is_not_counted_as_a_head(port):
    asked = b"POST /ok HTTP/1.1\r\nhost: daemon\r\nconnection: close\r\ncontent-length: 200000\r\n\r\n" + b"z" * 200000
    assert await _status(port, asked) == b"HTTP/1.1 200 OK"


async def test_who_still_sends_a_body_that_is_refused_reads_why(port):
    """Closed with bytes unread, the connection would be reset: the client would think that nobody is there."""
    length = 40 * 2**20
    head = b"POST /refused HTTP/1.1\r\nhost: daemon\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % length
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + bytes(length))
    await writer.drain()
    assert (await _said(reader)).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_silent_connections_make_room_for_those_that_ask(port, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "connections_at_once", 5)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    for _ in range(3):
        asked = _ASKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        assert await _status(port, asked) == b"HTTP/1.1 200 OK"
    assert (await _said(silent[0][0])).startswith(b"HTTP/1.1 503 Service Unavailable")
    for _, writer in silent:
        writer.close()


@pytest.mark.long
async def test_a_request_that_takes_its_time_to_end_with_the_daemon_is_no_error_in_its_log(monkeypatch):
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    app = FastAPI()
    asked = asyncio.Event()

    @app.get("/slow")
    async def slow() -> None:
        try:
            asked.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)

    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        async with serving(app, listener):
            monkeypatch.setattr(logging.getLogger("uvicorn.error"), "handlers", [handler])
            _, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
            writer.write(b"GET /slow HTTP/1.1\r\nhost: daemon\r\n\r\n")
            await asked.wait()
        await asyncio.sleep(0.5)
        writer.close()
    assert said == []  # before: "Exception in ASGI application", with a traceback
