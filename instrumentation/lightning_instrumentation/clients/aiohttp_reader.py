"""aiohttp's body reader, observed: every method that returns bytes passes them to us first.

A read that is cancelled, as by ``asyncio.wait_for``, does not end the call: the caller may continue to read.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import wrapt

from lightning_instrumentation.wire.body import Body


class WatchedReader(wrapt.ObjectProxy):
    """A proxy that returns the reader's data, in the reader's own pieces."""

    def __init__(self, reader: Any, body: Body) -> None:
        super().__init__(reader)
        self._self_body = body
        self._self_cancelled: CancelledError | None = None
        """The error that the last read ended with, if it was cancelled."""

    def left(self) -> None:
        """End the body, because the caller stops reading."""
        if self._self_cancelled is None:
            self._self_body.ended()
        else:
            self._self_body.failed(self._self_cancelled)

    async def read(self, n: int = -1) -> bytes:
        return await self._seen(self.__wrapped__.read(n))

    async def readany(self) -> bytes:
        return await self._seen(self.__wrapped__.readany())

    async def readline(self, **options: Any) -> bytes:
        return await self._seen(self.__wrapped__.readline(**options))

    async def readuntil(self, separator: bytes = b"\n", **options: Any) -> bytes:
        return await self._seen(self.__wrapped__.readuntil(separator, **options))

    async def readexactly(self, n: int) -> bytes:
        return await self._seen(self.__wrapped__.readexactly(n))

    async def readchunk(self) -> tuple[bytes, bool]:
        try:
            data, at_end = await self.__wrapped__.readchunk()
        except BaseException as error:
            self._failed(error)
            raise
        self._take(data)
        return data, at_end

    def read_nowait(self, n: int = -1) -> bytes:
        data = self.__wrapped__.read_nowait(n)
        self._take(data)
        return data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _until_empty(self.readline)

    def iter_any(self) -> AsyncIterator[bytes]:
        return _until_empty(self.readany)

    def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        return _until_empty(lambda: self.read(n))

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        while True:
            data, at_end = await self.readchunk()
            if not data and not at_end:
                return
            yield data, at_end

    async def _seen(self, reading: Awaitable[bytes]) -> bytes:
        try:
            data = await reading
        except BaseException as error:
            self._failed(error)
            raise
        self._take(data)
        return data

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, CancelledError):
            self._self_cancelled = error
        else:
            self._self_body.failed(error)

    def _take(self, data: bytes) -> None:
        self._self_cancelled = None
        self._self_body.feed(data)
        if self.__wrapped__.at_eof():
            self._self_body.finish()
            self._self_body.ended()


class RewrittenReader(WatchedReader):
    """A proxy that returns rewritten bytes instead of those that arrived, so it has its own buffer."""

    def __init__(self, reader: Any, body: Body) -> None:
        super().__init__(reader, body)
        self._self_held = b""
        self._self_whole = False

    async def read(self, n: int = -1) -> bytes:
        while not self._self_whole and (n < 0 or not self._self_held) and n != 0:
            await self._more()
        return self._out(len(self._self_held) if n < 0 else n)

    async def readany(self) -> bytes:
        while not self._self_whole and not self._self_held:
            await self._more()
        return self._out(len(self._self_held))

    async def readline(self, **options: Any) -> bytes:
        return await self.readuntil(b"\n")

    async def readuntil(self, separator: bytes = b"\n", **options: Any) -> bytes:
        while not self._self_whole and separator not in self._self_held:
            await self._more()
        end = self._self_held.find(separator)
        return self._out(len(self._self_held) if end < 0 else end + len(separator))

    async def readexactly(self, n: int) -> bytes:
        while not self._self_whole and len(self._self_held) < n:
            await self._more()
        if len(self._self_held) < n:
            return await self.__wrapped__.readexactly(n)  # raises aiohttp's own error if there is not enough
        return self._out(n)

    async def readchunk(self) -> tuple[bytes, bool]:
        data = await self.readany()
        return data, bool(data)

    def read_nowait(self, n: int = -1) -> bytes:
        return self._out(len(self._self_held) if n < 0 else n)

    def at_eof(self) -> bool:
        return self._self_whole and not self._self_held

    async def _more(self) -> None:
        try:
            data = await self.__wrapped__.readany()
        except BaseException as error:
            self._failed(error)
            raise
        self._self_cancelled = None
        self._self_held += self._self_body.feed(data)
        if not data or self.__wrapped__.at_eof():
            self._self_whole = True
            self._self_held += self._self_body.finish()
            self._self_body.ended()

    def _out(self, n: int) -> bytes:
        out, self._self_held = self._self_held[:n], self._self_held[n:]
        return out


async def _until_empty(read: Any) -> AsyncIterator[bytes]:
    while True:
        data = await read()
        if not data:
            return
        yield data
