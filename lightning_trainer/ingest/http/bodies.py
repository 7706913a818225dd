"""Request bodies with limits, so that neither a large body nor a decompression bomb can exhaust memory; and small JSON
bodies, often written by hand, which are refused with one sentence if they are wrong.
"""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from lightning_trainer.errors import LightningError, MalformedTelemetryError

_IDLE_S, _TOTAL_S = 15.0, 300.0
_CHUNK_BYTES = 2**14


class BodyTooLargeError(LightningError, ValueError):
    """A body is over the limit, compressed or decompressed."""


class BodyTooSlowError(LightningError, TimeoutError):
    """A body stopped arriving, or arrives too slowly."""


class TooManyBodiesError(LightningError, RuntimeError):
    """Bodies already in memory leave no room for another one."""


class BodyMemory:
    """The memory of all bodies that are being read and processed, under one limit.

    Bytes are counted as they arrive: a body that has not arrived takes no room from others.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0

    @asynccontextmanager
    async def body(self, chunks: AsyncIterable[bytes], *, limit: int) -> AsyncIterator[bytes]:
        """Hold a body in memory while the block runs.

        Raises:
            TooManyBodiesError: there is no room for all of it.
            BodyTooLargeError, BodyTooSlowError: as in ``read_body``.
        """
        held = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal held
            async for chunk in chunks:
                if self._held_bytes > held and self._held_bytes + len(chunk) > self._most_bytes:
                    raise TooManyBodiesError(
                        f"{self._held_bytes} bytes of other bodies are being stored already; try again"
                    )
                held += len(chunk)
                self._held_bytes += len(chunk)
                yield chunk

        try:
            yield await read_body(counted(), limit=limit)
        finally:
            self._held_bytes -= held


async def read_body(
    chunks: AsyncIterable[bytes], *, limit: int, idle_s: float = _IDLE_S, total_s: float = _TOTAL_S
) -> bytes:
    """Read a whole body.

    Args:
        limit: in bytes.
        idle_s: maximum pause between two chunks.
        total_s: maximum total time.

    Raises:
        BodyTooLargeError: it has more than ``limit`` bytes; reading stops there.
        BodyTooSlowError: it stopped arriving, or arrives too slowly.
    """
    parts: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    give_up = loop.time() + total_s
    try:
        async with asyncio.timeout(idle_s) as patience:
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise BodyTooLargeError(
                        f"the body has more than {limit} bytes; send less at once, or raise the limit"
                    )
                parts.append(chunk)
                patience.reschedule(min(loop.time() + idle_s, give_up))
    except TimeoutError:
        raise BodyTooSlowError(
            f"{size} bytes of the body came, and then none for {idle_s:g} s or not all in {total_s:g} s; send it again"
        ) from None
    return b"".join(parts)


def gunzip(body: bytes, *, limit: int) -> bytes:
    """Decompress a gzip body of one or more members.

    Raises:
        BodyTooLargeError: it decompresses to more than ``limit`` bytes; decompression stops there.
        MalformedTelemetryError: it is not gzip, or is truncated.
    """
    parts: list[bytes] = []
    size = at = 0
    view = memoryview(body)
    member = None
    try:
        while at < len(body):
            if member is None:
                member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            # In pieces: the rest after a member's end is copied, and a body may have a member in every 20 bytes.
            chunk = view[at : at + _CHUNK_BYTES]
            part = member.decompress(chunk, limit - size + 1)
            size += len(part)
            if size > limit:
                raise BodyTooLargeError(
                    f"the body inflates to more than {limit} bytes; send less at once, or raise the limit"
                )
            parts.append(part)
            at += len(chunk) - len(member.unused_data)
            if member.eof:
                member = None
        if member is not None:
            raise MalformedTelemetryError("the gzip body is cut short")
    except (zlib.error, gzip.BadGzipFile) as error:
        raise MalformedTelemetryError(f"the body is declared as gzip but is not: {error}") from error
    return b"".join(parts)


_MAX_BODY_BYTES = 2**20
Body = TypeVar("Body", bound=BaseModel)


class JsonBodyError(Exception):
    """A request that is refused; the caller reads the message."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status

    def response(self) -> JSONResponse:
        """Return the refusal as an HTTP answer with the error's status."""
        return error_response(self.status, str(self))


async def read_json(request: Request, model: type[Body]) -> Body:
    """Read a request's body.

    Raises:
        JsonBodyError: it is not declared as JSON (415), is not JSON (400), is too large (413) or too slow (408), or has
            a wrong field (422).
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Required because a web page may post any other content type to a loopback port without a CORS preflight.
        raise JsonBodyError(415, "send the body as application/json")
    try:
        raw = await read_body(request.stream(), limit=_MAX_BODY_BYTES)
        return checked(json.loads(raw), model)
    except BodyTooLargeError as error:
        raise JsonBodyError(413, str(error)) from error
    except BodyTooSlowError as error:
        raise JsonBodyError(408, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise JsonBodyError(400, f"the body is not JSON: {error}") from error


def checked(read: object, model: type[Body]) -> Body:
    """Return what was read from JSON as the model. Raises JsonBodyError: it has a wrong field (422)."""
    try:
        return model.model_validate(read)
    except ValidationError as error:
        raise JsonBodyError(422, _sentence(error)) from error


def error_response(
    status: int, sentence: str, *, retry_after_s: int | None = None, details: Mapping[str, Any] | None = None
) -> JSONResponse:
    """Return an error as JSON with one sentence, and ``details`` next to it."""
    headers = None if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return JSONResponse({"error": {"message": sentence, **(details or {})}}, status_code=status, headers=headers)


def _sentence(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in detail['loc']) or 'body'}: {detail['msg']}" for detail in error.errors()
    )
