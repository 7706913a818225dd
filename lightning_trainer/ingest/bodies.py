"""Request bodies under a bound: neither a large body nor a small one that inflates may fill the memory."""

import gzip
import zlib
from collections.abc import AsyncIterable

from lightning_trainer.errors import LightningError, MalformedTelemetryError


class BodyTooLargeError(LightningError, ValueError):
    """A body, or what it inflates to, is beyond the limit."""


async def read_body(chunks: AsyncIterable[bytes], *, limit: int) -> bytes:
    """Collect a body.

    Raises:
        BodyTooLargeError: it has more than ``limit`` bytes; reading stops there.
    """
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise BodyTooLargeError(f"the body has more than {limit} bytes; send less at once, or raise the limit")
        parts.append(chunk)
    return b"".join(parts)


def gunzip(body: bytes, *, limit: int) -> bytes:
    """Inflate a gzip body of one or more members.

    Raises:
        BodyTooLargeError: it inflates to more than ``limit`` bytes; inflating stops there.
        MalformedTelemetryError: it is not gzip, or is cut short.
    """
    parts: list[bytes] = []
    size = 0
    rest = body
    try:
        while rest:
            member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            part = member.decompress(rest, limit - size + 1)
            size += len(part)
            if size > limit:
                raise BodyTooLargeError(
                    f"the body inflates to more than {limit} bytes; send less at once, or raise the limit"
                )
            if not member.eof:
                raise MalformedTelemetryError("the gzip body is cut short")
            parts.append(part)
            rest = member.unused_data
    except (zlib.error, gzip.BadGzipFile) as error:
        raise MalformedTelemetryError(f"the body is said to be gzip and is not: {error}") from error
    return b"".join(parts)
