"""Token ids and log-probabilities as bytes: little-endian int32 and float32, whatever the machine."""

import struct
import sys
from array import array
from collections.abc import Iterable

_SWAP = sys.byteorder == "big"


def _pack(typecode: str, values: Iterable[float]) -> bytes:
    packed = array(typecode, values)  # type: ignore[arg-type]
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def _unpack(typecode: str, packed: bytes) -> array:
    values = array(typecode)
    values.frombytes(packed)
    if _SWAP:
        values.byteswap()
    return values


def pack_token_ids(token_ids: Iterable[int]) -> bytes:
    """Raises OverflowError for an id beyond int32, TypeError for one that is no integer."""
    ids = token_ids if isinstance(token_ids, list | tuple) else list(token_ids)
    try:
        return struct.pack(f"<{len(ids)}i", *ids)  # half the time of an array
    except struct.error:
        return _pack("i", ids)  # its errors say which of the two it is


def unpack_token_ids(packed: bytes) -> tuple[int, ...]:
    return tuple(_unpack("i", packed))


def pack_logprobs(logprobs: Iterable[float]) -> bytes:
    return _pack("f", logprobs)


def unpack_logprobs(packed: bytes) -> tuple[float, ...]:
    return tuple(_unpack("f", packed))
