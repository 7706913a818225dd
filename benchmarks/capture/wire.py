"""An HTTP/1.1 client that costs next to nothing, so that the server is what is measured: one request at a time."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Timing:
    status: int
    first_s: float
    """Seconds until the first piece of content."""
    total_s: float
    size: int


class Connection:
    """A connection that is kept open until the async context manager is left."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._host, self._port = place.hostname or "", place.port or 80

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=2**22)
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._writer.close()

    async def post(self, path: str, body: bytes) -> Timing:
        """Post a body and time its answer.

        Raises:
            OSError or EOFError: the server hung up.
        """
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        began_s = time.perf_counter()
        self._writer.write(head.encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        status = int(lines[0].split()[1])
        if "content-length" in headers:
            size = len(await self._reader.readexactly(int(headers["content-length"])))
            total_s = time.perf_counter() - began_s
            return Timing(status, total_s, total_s, size)
        first_s, size = 0.0, 0
        while True:
            length = int(await self._reader.readuntil(b"\r\n"), 16)
            chunk = await self._reader.readexactly(length + 2)
            if length == 0:
                return Timing(status, first_s, time.perf_counter() - began_s, size)
            # The first chunk has only the role, the second brings the first token.
            if not first_s and b'"content":"w' in chunk:
                first_s = time.perf_counter() - began_s
            size += length


def chat(model: str, *, stream: bool = False) -> bytes:
    messages = [{"role": "user", "content": "how much is 23 + 19 ? " * 90}]
    return json.dumps({"model": model, "messages": messages, "stream": stream}).encode()
