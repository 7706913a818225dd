"""Images in messages that a browser may draw: four raster formats of bounded size, recognized by their bytes.

What a message claims about itself is not trusted: the type is read from the bytes, and so is its size in pixels, since
a small file can decompress to gigabytes. SVG is markup and is never drawn. An address is not fetched.
Sources: PNG (W3C), 11.2.2; GIF89a; JFIF and ITU-T T.81, B.2.2; WebP container specification.
"""

import base64
import binascii
import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lightning_trainer.store.media.table import digest_of

_MOST_BYTES = 8 * 2**20
_MOST_PIXELS = 32 * 10**6
DRAWN = ("image/png", "image/jpeg", "image/gif", "image/webp")
_NOT_SIZES = (0xC4, 0xC8, 0xCC)
"""JPEG markers in the range of frame headers that are not frame headers."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a browser may draw, with its size in pixels."""

    kind: str
    """Its content type."""
    body: bytes
    width: int
    height: int


def is_embedded(part: Any) -> bool:
    """Whether a message's part carries its content itself, as GenAI's ``blob`` does."""
    return isinstance(part, dict) and part.get("type") == "blob" and isinstance(part.get("content"), str)


def stored_name(part: dict[str, Any]) -> str | None:
    """Return the hash of content that the store keeps apart from the span; None for any other part."""
    uri = part.get("uri")
    return digest_of(uri) if isinstance(uri, str) else None


def with_pictures(result: Any) -> list[Any]:
    """Return the parts of a tool's result (a list, or MCP's form) if any carries or refers to content; else none."""
    parts = result.get("content") if isinstance(result, dict) else result
    if not isinstance(parts, list):
        return []
    carried = (isinstance(part, dict) and (is_embedded(part) or stored_name(part) is not None) for part in parts)
    return parts if any(carried) else []


def name_of(part: dict[str, Any]) -> str:
    """Return a name that only a part with the same content has."""
    return hashlib.blake2b(part["content"].encode("utf-8", "replace"), digest_size=16).hexdigest()


def image_of(part: dict[str, Any]) -> Image | None:
    """Return the image in a part; None if there is none that may be drawn."""
    content = part["content"]
    if len(content) > _MOST_BYTES * 4 // 3:
        return None
    try:
        return drawn(base64.b64decode(content, validate=True))
    except (binascii.Error, ValueError):
        return None


def drawn(body: bytes) -> Image | None:
    """Return the image in some bytes; None if they are none that may be drawn."""
    try:
        found = _size(body) if len(body) <= _MOST_BYTES else None
    except (ValueError, struct.error, IndexError):
        return None
    if found is None:
        return None
    kind, width, height = found
    return Image(kind, body, width, height) if 0 < width * height <= _MOST_PIXELS else None


def find_image(messages: str, name: str) -> Image | None:
    """Return the image of that name in a text of messages, or of a tool's result."""
    try:
        found = json.loads(messages)
    except (ValueError, RecursionError):
        return None
    return next((image_of(part) for part in _parts(found) if is_embedded(part) and name_of(part) == name), None)


def _parts(messages: Any) -> Iterator[Any]:
    yield from with_pictures(messages)
    for message in messages if isinstance(messages, list) else ():
        parts = message.get("parts") if isinstance(message, dict) else None
        for part in parts if isinstance(parts, list) else ():
            yield part
            if isinstance(part, dict):
                yield from with_pictures(part.get("response", part.get("result")))


def _size(body: bytes) -> tuple[str, int, int] | None:
    if body.startswith(b"\x89PNG\r\n\x1a\n") and body[12:16] == b"IHDR":
        return "image/png", *struct.unpack(">II", body[16:24])
    if body.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif", *struct.unpack("<HH", body[6:10])
    if body.startswith(b"\xff\xd8\xff"):
        return _jpeg(body)
    if body.startswith(b"RIFF") and body[8:12] == b"WEBP":
        return _webp(body)
    return None


def _jpeg(body: bytes) -> tuple[str, int, int] | None:
    at = 2
    while body[at] == 0xFF:
        marker = body[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NOT_SIZES:
            height, width = struct.unpack(">HH", body[at + 5 : at + 9])
            return "image/jpeg", width, height
        at += 2 + struct.unpack(">H", body[at + 2 : at + 4])[0]
    return None


def _webp(body: bytes) -> tuple[str, int, int] | None:
    chunk = body[12:16]
    if chunk == b"VP8X":
        width, height = (1 + int.from_bytes(body[at : at + 3], "little") for at in (24, 27))
        return "image/webp", width, height
    if chunk == b"VP8L":
        bits = int.from_bytes(body[21:25], "little")
        return "image/webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 ":
        width, height = struct.unpack("<HH", body[26:30])
        return "image/webp", width & 0x3FFF, height & 0x3FFF
    return None
