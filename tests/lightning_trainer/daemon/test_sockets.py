"""The daemon's own socket: what is written to a connection goes out at once."""

import asyncio
import socket

import pytest

from lightning_trainer.daemon.http.sockets import listen
from lightning_trainer.errors import ConfigError


async def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    delays: list[int] = []

    async def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        delays.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = listen("127.0.0.1", 0)
    async with await asyncio.start_server(look, sock=listener):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    assert delays == [1]


def test_a_port_that_is_taken_is_said_at_once() -> None:
    with listen("127.0.0.1", 0) as holder, pytest.raises(ConfigError, match=r"set another port in \[daemon\]"):
        listen("127.0.0.1", holder.getsockname()[1])
