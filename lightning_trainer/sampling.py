"""The distribution that a token was drawn from, if it is not the plain softmax of the model's logits.

The engine turns logits ``l`` into what it samples from in this order (vLLM, ``v1/sample/sampler.py``): bias and
penalties change single logits, the temperature divides all of them, and a grammar, top-k, top-p, min-p, a list of
allowed or bad words leave some vocabulary entries and remove the others:

    q(t) = exp(z_t / T) / sum of exp(z_s / T) over s in S,   z = shaping(l),   t in S

``Shaping`` describes how ``z`` comes from ``l``, and ``Support`` which ``S`` was left at each token. With both, the
trainer computes exactly the probability that the engine reported, whatever the request asked for, and the ratio of the
two is 1 as long as the weights are the same. Torch-free.
"""

import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_HEADER = struct.Struct("<4sII")
"""Magic, vocabulary, tokens."""
_MAGIC = b"SUP1"
_LENGTH = struct.Struct("<I")

ONLY, ALL_BUT, BITS = 0, 1, 2
"""The first byte of a pattern tells what follows: the ids that are left, the ids that are not (little-endian int32,
ascending), or one bit per entry (the lowest bit of a byte first)."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """What is done to single logits before the temperature; the defaults do nothing.

    In vLLM's order: ``logit_bias`` is added; then the logits of tokens that occur in the prompt or in the response so
    far are divided (if positive) or multiplied (if negative) by ``repetition_penalty``; then ``frequency_penalty``
    times the count in the response so far, and ``presence_penalty`` if that count is not zero, are subtracted.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, bias), by id."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def changes_nothing(self) -> bool:
        """Whether all fields have their defaults."""
        return self == _PLAIN


_PLAIN = Shaping()


@dataclass(frozen=True, slots=True)
class Support:
    """Which vocabulary entries each token of a response could have been.

    Legend: ``L`` tokens of the response, ``V`` vocabulary entries.
    """

    vocabulary: int
    patterns: tuple[bytes, ...]
    """The distinct sets, in the shortest of three forms; see ``pattern_of``."""
    pattern_L: tuple[int, ...]
    """Index into ``patterns``; -1 is the whole vocabulary."""

    def __len__(self) -> int:
        return len(self.pattern_L)

    @property
    def sizes_L(self) -> list[int]:
        """Return how many entries were left at each token, ``[L]``; 1 means that there was no choice."""
        sizes = [size_of(pattern, self.vocabulary) for pattern in self.patterns]
        return [self.vocabulary if index < 0 else sizes[index] for index in self.pattern_L]

    def first_outside(self, token_ids: Iterable[int]) -> int | None:
        """Return the index of the first token that is not among the entries left to it; None if all are."""
        for place, (index, token_id) in enumerate(zip(self.pattern_L, token_ids, strict=True)):
            if not 0 <= token_id < self.vocabulary:
                return place
            if index >= 0 and not holds(self.patterns[index], token_id):
                return place
        return None

    def first(self, tokens: int) -> "Support":
        """Return the support of the first ``tokens`` tokens."""
        return Support(self.vocabulary, self.patterns, self.pattern_L[:tokens])

    def encode(self) -> bytes:
        """Return the support as bytes (zlib over a header, the indices as little-endian int32, and the patterns)."""
        parts = [_HEADER.pack(_MAGIC, self.vocabulary, len(self.pattern_L)), _int32(self.pattern_L)]
        for pattern in self.patterns:
            parts += (_LENGTH.pack(len(pattern)), pattern)
        return zlib.compress(b"".join(parts), level=1)

    @classmethod
    def decode(cls, body: bytes, *, limit_bytes: int = 1 << 28) -> "Support":
        """Read what ``encode`` wrote.

        Raises:
            ValueError: it is damaged, or larger than ``limit_bytes`` when unpacked.
        """
        try:
            unpacker = zlib.decompressobj()
            plain = unpacker.decompress(body, limit_bytes)
            if unpacker.unconsumed_tail:
                raise ValueError(f"a support is larger than {limit_bytes} bytes")
            if not unpacker.eof:
                raise ValueError("a support ends before its end")
            magic, vocabulary, tokens = _HEADER.unpack_from(plain)
            if magic != _MAGIC:
                raise ValueError(f"a support begins with {magic!r}, not with {_MAGIC!r}")
            place = _HEADER.size + 4 * tokens
            indices = tuple(_ints(plain[_HEADER.size : place]))
            patterns: list[bytes] = []
            while place < len(plain):
                (length,) = _LENGTH.unpack_from(plain, place)
                place += _LENGTH.size
                if length == 0 or place + length > len(plain):
                    raise ValueError("a support ends in the middle of a pattern")
                patterns.append(plain[place : place + length])
                place += length
        except (zlib.error, struct.error) as error:
            raise ValueError(f"a support cannot be read: {error}") from error
        if len(indices) != tokens or any(not -1 <= index < len(patterns) for index in indices):
            raise ValueError("a support names a pattern that it does not have")
        return cls(vocabulary, tuple(patterns), indices)


def support_of(vocabulary: int, entries_L: Iterable[Sequence[int] | None]) -> Support:
    """Return a support.

    Args:
        entries_L: for each token the ids that were left, ascending and distinct; None for the whole vocabulary.
    """
    index_of: dict[bytes, int] = {}
    pattern_L = tuple(
        -1
        if entries is None or len(entries) == vocabulary
        else index_of.setdefault(pattern_of(entries, vocabulary), len(index_of))
        for entries in entries_L
    )
    return Support(vocabulary, tuple(index_of), pattern_L)


def pattern_of(entries: Sequence[int], vocabulary: int) -> bytes:
    """Return a set of ids (ascending, distinct) in the shortest form: those in it, those not in it, or one bit each."""
    inside, outside, bits = 4 * len(entries), 4 * (vocabulary - len(entries)), (vocabulary + 7) // 8
    if inside <= min(outside, bits):
        return bytes([ONLY]) + _int32(entries)
    if outside <= bits:
        left = set(entries)
        return bytes([ALL_BUT]) + _int32([entry for entry in range(vocabulary) if entry not in left])
    mask = bytearray(bits)
    for entry in entries:
        mask[entry >> 3] |= 1 << (entry & 7)
    return bytes([BITS]) + bytes(mask)


def entries_of(pattern: bytes, vocabulary: int) -> Sequence[int]:
    """Return the ids of a pattern, ascending.

    Raises:
        ValueError: the pattern's form is unknown.
    """
    form, rest = pattern[0], pattern[1:]
    if form == ONLY:
        return _ints(rest)
    if form == ALL_BUT:
        gone = set(_ints(rest))
        return [entry for entry in range(vocabulary) if entry not in gone]
    if form == BITS:
        return list(_set_bits(rest, vocabulary))
    raise ValueError(f"a pattern of a support has the form {form}; there are 0, 1 and 2")


def size_of(pattern: bytes, vocabulary: int) -> int:
    """Return how many ids a pattern leaves, without listing them."""
    if pattern[0] == BITS:
        return (int.from_bytes(pattern[1:], "little") & ((1 << vocabulary) - 1)).bit_count()
    named = (len(pattern) - 1) // 4
    return named if pattern[0] == ONLY else vocabulary - named


def holds(pattern: bytes, token_id: int) -> bool:
    """Whether a pattern leaves this id."""
    if pattern[0] == BITS:
        byte = 1 + (token_id >> 3)
        return byte < len(pattern) and bool(pattern[byte] >> (token_id & 7) & 1)
    named = _ints(pattern[1:])
    place = bisect_left(named, token_id)
    return (place < len(named) and named[place] == token_id) == (pattern[0] == ONLY)


def _set_bits(mask: bytes, vocabulary: int) -> Iterator[int]:
    for byte, value in enumerate(mask):
        for bit in range(8):
            if value >> bit & 1 and 8 * byte + bit < vocabulary:
                yield 8 * byte + bit


def _int32(values: Iterable[int]) -> bytes:
    return struct.pack(f"<{len(found := list(values))}i", *found)


def _ints(body: bytes) -> array:
    found = array("i")
    found.frombytes(body)
    return found
