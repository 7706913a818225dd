"""Undoes ``Content-Encoding`` for our own reading; the caller decodes the bytes for itself."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable


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
