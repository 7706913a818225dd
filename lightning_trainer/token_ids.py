"""Token ids that stay packed as a span carries them, four bytes each.

A tuple of ints takes 36 bytes a token, and making one is most of the work of reading a call, though hardly anything is
ever asked of a prompt except its length and its beginning. The bytes answer both.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias, overload

from lightning_instrumentation.spans.packing import pack_token_ids, unpack_token_ids

BYTES_A_TOKEN = 4


class TokenIds(Sequence[int]):
    """Packed token ids: immutable, equal to the tuple of the same ids and hashed like it; slices and sums are tuples.

    Raises:
        ValueError: the bytes are not a whole number of ids.
    """

    __slots__ = ("packed",)

    def __init__(self, packed: bytes = b"") -> None:
        if len(packed) % BYTES_A_TOKEN:
            raise ValueError(f"{len(packed)} bytes are not packed token ids: each takes {BYTES_A_TOKEN}")
        self.packed = packed
        """Little-endian int32 (``lightning_instrumentation.spans.packing``)."""

    def __len__(self) -> int:
        return len(self.packed) // BYTES_A_TOKEN

    def __iter__(self) -> Iterator[int]:
        return iter(unpack_token_ids(self.packed))

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return unpack_token_ids(self.packed)[index]
            return unpack_token_ids(self.packed[start * BYTES_A_TOKEN : stop * BYTES_A_TOKEN])
        place = range(len(self))[index] * BYTES_A_TOKEN
        return int.from_bytes(self.packed[place : place + BYTES_A_TOKEN], "little", signed=True)

    def __add__(self, other: Sequence[int]) -> tuple[int, ...]:
        if isinstance(other, TokenIds):
            return unpack_token_ids(self.packed + other.packed)
        return (*self, *other)

    def __radd__(self, other: Sequence[int]) -> tuple[int, ...]:
        return (*other, *self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            return self.packed == other.packed
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


Ids: TypeAlias = TokenIds | tuple[int, ...]
"""Immutable token ids, packed or as a tuple."""


def packed(token_ids: Sequence[int]) -> bytes:
    """Return ids as bytes: one string starts with another exactly when the ids do."""
    return token_ids.packed if isinstance(token_ids, TokenIds) else pack_token_ids(token_ids)
