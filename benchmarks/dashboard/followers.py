"""Open pages without browsers (those run on other machines): each follows ``/events`` and fetches itself again.

    python -m benchmarks.dashboard.followers URL COUNT

The pace is that of ``dashboard.js``. Prints a line when all of them are open, and runs until it is terminated.
"""

import asyncio
import random
import sys
import time
from urllib.parse import urlsplit

_LEAST_PACE_MS = 3000


async def follow(host: str, port: int, opened: asyncio.Event) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /events HTTP/1.1\r\nhost: {host}:{port}\r\naccept: text/event-stream\r\n\r\n".encode())
    await reader.readuntil(b"\n\n")
    opened.set()
    last_s, waiting = 0.0, None
    while True:
        line = await reader.readline()
        if not line:
            raise ConnectionError("the daemon has closed the stream of events")
        if line.startswith(b"data: ") and (waiting is None or waiting.done()):
            pace_s = int(line[6:]) / 1000
            spread_s = random.random() * max(0.0, pace_s - _LEAST_PACE_MS / 1000)
            wait_s = max(spread_s, last_s + pace_s - time.monotonic())
            waiting = asyncio.create_task(renew(host, port, wait_s))
            last_s = time.monotonic() + wait_s


async def renew(host: str, port: int, wait_s: float) -> None:
    await asyncio.sleep(wait_s)
    reader, writer = await asyncio.open_connection(host, port)
    asked = f"GET / HTTP/1.1\r\nhost: {host}:{port}\r\nx-renewed-page: 1\r\nconnection: close\r\n\r\n"
    writer.write(asked.encode())
    answer = await reader.read(-1)
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"the page was not there: {answer[:80]!r}")


async def main(url: str, count: int) -> None:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    opened = [asyncio.Event() for _ in range(count)]
    async with asyncio.TaskGroup() as group:
        for one in opened:
            group.create_task(follow(host, port, one))
        for one in opened:
            await one.wait()
        print("open", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
