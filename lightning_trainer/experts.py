"""Which experts the layers of a mixture of experts chose for each token when the engine sampled.

The choice of experts is not continuous: if two are nearly equally good, the engine's rounding may pick one and the
trainer's the other, and the two compute different functions of the same weights. With the engine's choice recorded, the
trainer takes the same experts. Source: Ma et al., Rollout Routing Replay, arXiv 2510.11370. Torch-free.
"""

import struct
import zlib
from dataclasses import dataclass

_HEADER = struct.Struct("<4sIIIII")
"""Magic, first position, positions, layers, experts per token, bytes per expert."""
_MAGIC = b"EXP1"


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The experts of a run of positions.

    Legend: ``N`` positions, ``L`` layers of the model, ``K`` experts per token.

    A position's entry holds the experts that were chosen when its token went through the model, the pass that gives the
    next token its probability. The last token of a response never goes through, so it has no entry.
    """

    start: int
    """Position of the first entry in prompt and response."""
    layers: int
    """All layers of the model; those without experts hold zeros."""
    top_k: int
    width: int
    """Bytes per id: 1, or 2 if there are more than 256 experts."""
    ids: bytes
    """``[N, L, K]``, little-endian; the ``K`` are in no particular order."""

    def __post_init__(self) -> None:
        if self.start < 0 or self.width not in (1, 2) or min(self.layers, self.top_k) < 1:
            raise ValueError(
                f"routed experts begin at {self.start}, in {self.layers} layers, {self.top_k} a token, {self.width} "
                "bytes each; a position is 0 or more, an id has 1 or 2 bytes"
            )
        if len(self.ids) % self.row_bytes:
            raise ValueError(f"routed experts have {len(self.ids)} bytes, which are not whole rows of {self.row_bytes}")

    @property
    def row_bytes(self) -> int:
        """Return the size of one position's entry, over all layers."""
        return self.layers * self.top_k * self.width

    def __len__(self) -> int:
        return len(self.ids) // self.row_bytes

    @property
    def end(self) -> int:
        """Return the position after the last entry."""
        return self.start + len(self)

    def between(self, start: int, end: int) -> "RoutedExperts | None":
        """Return the entries at positions ``[start, end)``; None if there are none."""
        first, last = max(start, self.start), min(end, self.end)
        if first >= last:
            return None
        if (first, last) == (self.start, self.end):
            return self
        row = self.row_bytes
        ids = self.ids[(first - self.start) * row : (last - self.start) * row]
        return RoutedExperts(first, self.layers, self.top_k, self.width, ids)

    def encode(self) -> bytes:
        """Return the entries as bytes (zlib over a header and the ids)."""
        header = _HEADER.pack(_MAGIC, self.start, len(self), self.layers, self.top_k, self.width)
        return zlib.compress(header + self.ids, level=1)

    @classmethod
    def decode(cls, body: bytes, *, limit_bytes: int = 1 << 28) -> "RoutedExperts":
        """Read what ``encode`` wrote.

        Raises:
            ValueError: it is damaged, or larger than ``limit_bytes`` when unpacked.
        """
        try:
            unpacker = zlib.decompressobj()
            plain = unpacker.decompress(body, limit_bytes)
            if unpacker.unconsumed_tail:
                raise ValueError(f"routed experts are larger than {limit_bytes} bytes")
            if not unpacker.eof:
                raise ValueError("routed experts end before their end")
            magic, start, positions, layers, top_k, width = _HEADER.unpack_from(plain)
        except (zlib.error, struct.error) as error:
            raise ValueError(f"routed experts cannot be read: {error}") from error
        if magic != _MAGIC:
            raise ValueError(f"routed experts begin with {magic!r}, not with {_MAGIC!r}")
        read = cls(start, layers, top_k, width, plain[_HEADER.size :])
        if len(read) != positions:
            raise ValueError(f"routed experts hold {len(read)} positions and promise {positions}")
        return read
