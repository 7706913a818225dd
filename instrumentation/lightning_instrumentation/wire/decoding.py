"""Reads the bytes of an answer for ourselves: undoes ``Content-Encoding`` and reads JSON. The caller does so again."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable
from typing import Any

_loads = json.JSONDecoder().decode


def read_json(data: bytes) -> Any:
    """As ``json.loads``, but for its look at how the bytes are encoded where they begin as an object in UTF-8 does.

    Raises:
        ValueError: it is no JSON.
    """
    return _loads(data.decode("utf-8", "surrogatepass")) if data.startswith(b'{"') else json.loads(data)


def decoder(encoding: str | None) -> Callable[[bytes], bytes] | None:
    """Return a function that decodes piece by piece, None where this process cannot.

    Decoders beyond the standard library are those that the HTTP client itself has loaded.
    """
    if encoding is None:
        return bytes
    name = encoding.strip().lower() or "identity"
    if name == "identity":
        return bytes
    if name in ("gzip", "x-gzip"):
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress
    if name == "deflate":
        return zlib.decompressobj().decompress
    if name == "zstd" and "zstandard" in sys.modules:
        return sys.modules["zstandard"].ZstdDecompressor().decompressobj().decompress
    for module in ("brotli", "brotlicffi"):
        if name == "br" and module in sys.modules:
            brotli = sys.modules[module].Decompressor()
            return getattr(brotli, "decompress", None) or brotli.process
    return None
