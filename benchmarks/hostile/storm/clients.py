"""A process of hostile clients, each on connections of its own, all at once, until it is terminated.

python -m benchmarks.hostile.storm.clients PORT COUNT [AUTHORITY]

If the file of an authority is given, they speak TLS, and some of them never finish a handshake.
"""

import asyncio
import logging
import random
import ssl
import sys
from collections.abc import Awaitable, Callable

from benchmarks.common.processes import end_with_parent
from benchmarks.hostile.fuzz import otlp_bodies

_TRACES = b"POST /v1/traces HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/x-protobuf\r\n"
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter, random.Random], Awaitable[None]]


async def half_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """Send nothing, and wait."""
    await reader.read()


async def slow_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    for byte in _TRACES * 3:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(rng.uniform(0.2, 1.0))


async def endless_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    writer.write(_TRACES)
    for number in range(100_000):
        writer.write(b"x-%d: %s\r\n" % (number, b"y" * 500))
        await writer.drain()


async def half_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    writer.write(_TRACES + b"content-length: 60000000\r\n\r\n" + bytes(rng.choice((1, 4096, 2**20))))
    await writer.drain()
    await reader.read()


async def slow_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    writer.write(b"POST /rollouts/r/reward HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n")
    writer.write(b"content-length: 1000000\r\n\r\n")
    for _ in range(1000):
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(rng.uniform(0.2, 1.0))


async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """Ask again and again, and read no answer."""
    for _ in range(2000):
        writer.write(b"GET /lightning/agents HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 20)
        await writer.drain()
        await asyncio.sleep(0.5)


async def flooding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """Send spans, whole and damaged, as fast as they are answered."""
    while not reader.at_eof():
        body, headers = otlp_bodies.protobuf(f"flood-{rng.randrange(10**9)}", rng)
        encoding = "gzip" if headers.get("content-encoding") == "gzip" else "identity"
        writer.write(_TRACES + f"content-encoding: {encoding}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:")), 0)
        await reader.readexactly(length)


async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    writer.write(
        rng.choice(
            (
                b"\x16\x03\x01\x02\x00",
                b"GET / HTTP/9.9\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                rng.randbytes(4000),
            )
        )
    )
    await writer.drain()
    await reader.read()


async def half_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """Begin a handshake, and send no more."""
    writer.write(_HELLO[: rng.randrange(1, len(_HELLO))])
    await reader.read()


async def slow_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    for byte in _HELLO:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(rng.uniform(0.2, 1.0))


async def only_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """Finish a handshake, which costs the daemon a signature, and leave."""


_KINDS: tuple[Client, ...] = (
    *(half_open, half_open, slow_head, slow_head, half_body, half_body, slow_body, endless_head, deaf, nonsense),
    *(flooding,),
)
_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
"""A handshake's first record, incomplete."""
_BEFORE_TLS: tuple[Client, ...] = (half_open, half_handshake, half_handshake, slow_handshake, slow_body, nonsense)
"""On the bare connection: clients that do not finish a handshake, or that speak plain HTTP."""


async def _client(number: int, port: int, tls: ssl.SSLContext | None) -> None:
    kinds = _KINDS if tls is None else (*_KINDS, only_handshake, *_BEFORE_TLS)
    at, rng = number % len(kinds), random.Random(number)
    kind, name = kinds[at], None
    if at > len(_KINDS):
        tls = None
    if tls is not None:
        name = "127.0.0.1"
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
        except OSError:
            await asyncio.sleep(0.5)
            continue
        try:
            await kind(reader, writer, rng)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()
        await asyncio.sleep(rng.uniform(0.1, 0.5))


async def _main(port: int, count: int, tls: ssl.SSLContext | None) -> None:
    await asyncio.gather(*(_client(number, port, tls) for number in range(count)))


if __name__ == "__main__":
    end_with_parent()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every write to a client that is gone
    authority = ssl.create_default_context(cafile=sys.argv[3]) if len(sys.argv) > 3 else None
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), authority))
