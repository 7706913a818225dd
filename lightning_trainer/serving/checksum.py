"""The checksum of a weight file: xxh3-128 of its bytes. It finds accidents and mix-ups, not attackers."""

from pathlib import Path

import xxhash

_CHUNK_BYTES = 16 * 2**20


def file_checksum(path: str | Path) -> str:
    """Return 32 lower-case hex digits.

    Raises:
        OSError: the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
