"""urllib3's response, observed: all data that is read from it passes through us first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import wrapt

from lightning_instrumentation.wire.body import Body
from lightning_instrumentation.wire.call import ModelCall

_PIECE_BYTES = 1 << 16


class WatchedRaw(wrapt.ObjectProxy):
    """A proxy of the response: requests reads it with ``stream``; the other methods are for users of requests.

    Methods that urllib3 inherits, or builds on its own ``read``, are built in the same way on our ``read``.
    """

    def __init__(self, raw: Any, call: ModelCall, content_type: str, encoding: str | None) -> None:
        super().__init__(raw)
        self._self_call = call
        self._self_content_type = content_type
        self._self_encoding = encoding
        self._self_body: Body | None = None
        self._self_pieces: Iterator[bytes] | None = None
        """Pieces of rewritten data; their lengths differ from what arrives, so they are buffered in ``_self_held``."""
        self._self_held = b""
        self._self_data: bytes | None = None

    def stream(self, amt: int | None = _PIECE_BYTES, decode_content: bool | None = None) -> Iterator[bytes]:
        body = self._body(decode_content)
        yield from self._rest(body, self.__wrapped__.stream(amt, decode_content))

    def read_chunked(self, amt: int | None = None, decode_content: bool | None = None) -> Iterator[bytes]:
        body = self._body(decode_content)
        yield from self._rest(body, self.__wrapped__.read_chunked(amt, decode_content))

    def _rest(self, body: Body, arriving: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the data that has not been read yet."""
        pieces = self._self_pieces or _watched(body, arriving)
        held, self._self_held = self._self_held, b""
        if held:
            yield held
        yield from pieces

    def read(self, amt: int | None = None, decode_content: bool | None = None, **options: Any) -> bytes:
        body = self._body(decode_content)
        amt = None if amt is not None and amt < 0 else amt
        if body.rewrites:
            while (amt is None or len(self._self_held) < amt) and self._more(body, decode_content):
                pass
            return self._taken(amt)
        return _seen(body, self.__wrapped__.read(amt, decode_content=decode_content, **options), amt, whole=amt is None)

    def read1(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        body = self._body(decode_content)
        amt = None if amt is not None and amt < 0 else amt
        if body.rewrites:
            while amt != 0 and not self._self_held and self._more(body, decode_content):
                pass
            return self._taken(amt)
        return _seen(body, self.__wrapped__.read1(amt, decode_content=decode_content), amt)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readline(self, size: int | None = -1) -> bytes:
        line = bytearray()
        most = float("inf") if size is None or size < 0 else size
        while len(line) < most and not line.endswith(b"\n"):
            byte = self.read(1)
            if not byte:
                break
            line += byte
        return bytes(line)

    def readlines(self, hint: int | None = -1) -> list[bytes]:
        lines: list[bytes] = []
        size = 0
        for line in self:
            lines.append(line)
            size += len(line)
            if hint is not None and 0 < hint <= size:
                break
        return lines

    @property
    def data(self) -> bytes:
        if self._self_data is None:
            self._self_data = self.read(cache_content=True)
        return self._self_data

    def json(self) -> Any:
        return json.loads(self.data.decode())

    def __iter__(self) -> Iterator[bytes]:
        held = b""
        for piece in self.stream(decode_content=True):
            lines = (held + piece).splitlines(keepends=True)
            held = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
            yield from lines
        if held:
            yield held

    def close(self) -> None:
        try:
            self.__wrapped__.close()
        finally:
            self._self_call.abandon()

    def _more(self, body: Body, decode_content: bool | None) -> bool:
        """Hold more of the rewritten data; False at its end."""
        if self._self_pieces is None:
            self._self_pieces = _watched(body, self.__wrapped__.stream(_PIECE_BYTES, decode_content))
        piece = next(self._self_pieces, None)
        self._self_held += piece or b""
        return piece is not None

    def _taken(self, amt: int | None) -> bytes:
        end = len(self._self_held) if amt is None else amt
        piece, self._self_held = self._self_held[:end], self._self_held[end:]
        return piece

    def _body(self, decode_content: bool | None) -> Body:
        if self._self_body is None:
            decodes = self.__wrapped__.decode_content if decode_content is None else decode_content
            encoding = None if decodes else self._self_encoding
            self._self_body = Body(self._self_call, self._self_content_type, encoding)
        return self._self_body


def _watched(body: Body, arriving: Iterator[bytes]) -> Iterator[bytes]:
    try:
        for piece in arriving:
            handed_on = body.feed(piece)
            if handed_on:
                yield handed_on
        rest = body.finish()
        if rest:
            yield rest
    except BaseException as error:
        body.failed(error)
        raise
    body.ended()


def _seen(body: Body, piece: bytes, amt: int | None, *, whole: bool = False) -> bytes:
    body.feed(piece)
    if whole or (not piece and amt != 0):
        body.finish()
        body.ended()
    return piece
