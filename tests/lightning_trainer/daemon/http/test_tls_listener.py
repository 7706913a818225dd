"""With TLS, too, peers that send nothing, half a handshake or something else take little and hold up nobody."""

import asyncio
import contextlib
import ssl

import pytest
import uvloop
from fastapi import FastAPI, HTTPException

from lightning_trainer.config import DaemonConfig
from lightning_trainer.daemon.http.connections import BoundedProtocol
from lightning_trainer.daemon.http.server import serving
from lightning_trainer.daemon.http.sockets import bind
from lightning_trainer.daemon.http.tls import read_certificate

_ASKED = b"GET /ok HTTP/1.1\r\nhost: daemon\r\nconnection: close\r\n\r\n"
_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""Where a handshake begins; the rest of the record does not come."""


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request):
    return request.param()


@pytest.fixture
def client_context(authority):
    return ssl.create_default_context(cafile=str(authority.file))


@pytest.fixture
async def port(authority, client_context):
    app = FastAPI()

    @app.get("/ok")
    async def ok() -> str:
        return "fine"

    @app.post("/refused")
    async def refused() -> None:
        raise HTTPException(413)

    cert, key = authority.sign("daemon.test")
    certificate = read_certificate(DaemonConfig(tls_cert=cert, tls_key=key))
    assert certificate is not None
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        async with serving(app, listener, tls=lambda: certificate.context):
            yield listener.getsockname()[1]


async def _open(port, context):
    async with asyncio.timeout(20):
        return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="daemon.test")


async def _said(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(20):
        try:
            return await reader.read()
        except (ConnectionError, ssl.SSLError):
            return b""


async def _answer(port, context, sent: bytes) -> bytes:
    reader, writer = await _open(port, context)
    writer.write(sent)
    answer = await _said(reader)
    writer.close()
    return answer


async def test_whoever_speaks_tls_is_served(port, client_context):
    answer = await _answer(port, client_context, _ASKED)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b'"fine"')


@pytest.mark.parametrize(
    "sent", [_ASKED, b"POST /v1/traces HTTP/1.1\r\ncontent-length: 3000000\r\n\r\n" + bytes(10**6), b"z"]
)
async def test_whoever_speaks_plain_http_is_told_so(port, sent):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await _said(reader)
    assert answer.startswith(b"HTTP/1.1 426 Upgrade Required")
    assert b"write https:// in the daemon's URL" in answer
    writer.close()


@pytest.mark.parametrize("sent", [b"", _HELLO[:1], _HELLO])
async def test_a_handshake_has_the_time_of_a_head(port, client_context, monkeypatch, sent):
    monkeypatch.setattr(BoundedProtocol, "head_s", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(5):
        await _said(reader)
    writer.close()
    assert (await _answer(port, client_context, _ASKED)).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.long
async def test_a_head_behind_the_handshake_has_its_own(port, client_context, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_s", 0.3)
    assert (await _answer(port, client_context, b"GET /ok HT")).startswith(b"HTTP/1.1 408 Request Timeout")
    lines = [b"x-%d: %s\r\n" % (number, b"y" * 1000) for number in range(200)]
    answer = await _answer(port, client_context, b"".join([b"GET /ok HTTP/1.1\r\n", *lines]))
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_rubbish_within_the_handshake_ends_it(port, client_context):
    for sent in (_HELLO + bytes(600), b"\x16" * 5000):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await _said(reader)
        writer.close()
    assert (await _answer(port, client_context, _ASKED)).startswith(b"HTTP/1.1 200 OK")


async def test_who_still_sends_a_body_that_is_refused_reads_why(port, client_context):
    length = 8 * 2**20
    head = b"POST /refused HTTP/1.1\r\nhost: daemon\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % length
    assert (await _answer(port, client_context, head + bytes(length))).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("kind", ["silent", "half a handshake", "a handshake and nothing behind it"])
async def test_who_only_takes_room_makes_it_for_those_that_ask(port, client_context, monkeypatch, kind):
    monkeypatch.setattr(BoundedProtocol, "connections_at_once", 5)
    flood = []
    for _ in range(20):
        if kind.startswith("a handshake"):
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                flood.append(await _open(port, client_context))
        else:
            flood.append(await asyncio.open_connection("127.0.0.1", port))
            flood[-1][1].write(_HELLO if "half" in kind else b"")
    for _ in range(3):
        assert (await _answer(port, client_context, _ASKED)).startswith(b"HTTP/1.1 200 OK")
    await _said(flood[0][0])
    for _, writer in flood:
        writer.close()


async def test_who_does_not_know_the_authority_leaves(port):
    with pytest.raises(ssl.SSLCertVerificationError):
        await _open(port, ssl.create_default_context())
