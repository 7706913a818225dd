"""The daemon's own socket: what is written to a connection goes out at once."""

import asyncio
import errno
import socket

import pytest

from lightning_trainer.daemon.http.sockets import bind, listen
from lightning_trainer.errors import ConfigError


async def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    delays: list[int] = []

    async def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        delays.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = bind("127.0.0.1", 0)
    async with await asyncio.start_server(look, sock=listener):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    assert delays == [1]


def test_a_port_that_is_taken_is_said_at_once() -> None:
    with bind("127.0.0.1", 0) as holder:
        listen(holder)
        with pytest.raises(ConfigError, match=r"set another port in \[daemon\]"):
            bind("127.0.0.1", holder.getsockname()[1])


def test_a_machine_without_ipv6_is_said_in_a_sentence(monkeypatch) -> None:
    def without_ipv6(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with pytest.raises(
        ConfigError, match=r"^cannot listen on ::1:8321: Address family not supp.*; set host in \[daemon\]"
    ):
        bind("::1", 8321)


def test_of_two_that_start_at_once_the_slower_is_told() -> None:
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        listen(first)
        with pytest.raises(ConfigError, match=r"set another port in \[daemon\]"):
            listen(second)


def test_a_caller_is_refused_until_the_daemon_listens() -> None:
    with bind("127.0.0.1", 0) as bound:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(bound.getsockname(), timeout=5)
        listen(bound)
        socket.create_connection(bound.getsockname(), timeout=5).close()
