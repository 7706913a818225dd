"""What a row of logits was sampled from: from the model's logits ``l`` to ``log q`` of ``lightning_trainer.sampling``.

    log q(t) = y_t - log(sum of exp(y_s) over s in S),   y = z / T,   z = shaping(l)

A row's scores are ``y``, with minus infinity outside its support ``S``. Their log-softmax is ``log q``, and the
gradient for the logits is that for the scores, 0 outside ``S``, times ``dy/dl = slope / T``. The slope is 1 except at
the tokens of the repetition penalty, which multiplies; biases and the other penalties are constants.

Rows are processed in blocks, in float32, so that there is never a second matrix of all of them.

Legend: ``R`` rows, ``V`` vocabulary, ``B`` rows of a block.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from lightning_trainer.sampling import ALL_BUT, BITS, ONLY, Shaping

_ROWS = 64
"""Rows per block; a block takes three matrices: scores, what is outside, and a gradient."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """What one row was sampled from, if not the plain softmax of its logits."""

    shaping: Shaping | None
    pattern: bytes | None
    """What was left of the vocabulary (``sampling.Support``); None: all of it."""
    vocabulary: int
    """Number of entries that the pattern covers; any beyond them could not be sampled."""
    before: Ints
    """The tokens before the sampled one, from the beginning of the prompt."""
    prompt: int
    """How many of them are the prompt."""

    def outside(self, width: int) -> npt.NDArray[np.bool_]:
        """Return which of ``width`` entries could not be sampled."""
        outside = np.ones(width, np.bool_)
        if self.pattern is None:
            outside[:] = False
            return outside
        known = min(width, self.vocabulary)
        form, rest = self.pattern[0], self.pattern[1:]
        if form == BITS:
            inside = np.unpackbits(np.frombuffer(rest, np.uint8), bitorder="little")[:known]
            outside[: len(inside)] = inside == 0
            return outside
        named = np.frombuffer(rest, "<i4")
        if form == ALL_BUT:
            outside[:known] = False
        outside[named[named < known]] = form != ONLY
        return outside


@dataclass(frozen=True, slots=True)
class _Slope:
    """``dz/dl`` of a row where it is not 1."""

    row: int
    tokens: torch.Tensor
    factor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Scores:
    """A block's scores, and what it takes to turn their gradient into the logits'."""

    start: int
    values_BV: torch.Tensor
    temperature_B1: torch.Tensor
    slopes: list[_Slope]

    def to_logits(self, gradient_BV: torch.Tensor) -> torch.Tensor:
        """Turn the scores' gradient into the logits', in place, and return it."""
        gradient_BV /= self.temperature_B1
        for slope in self.slopes:
            gradient_BV[slope.row, slope.tokens] *= slope.factor
        return gradient_BV


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """What the rows of a matrix of logits were sampled from."""

    temperature_R: torch.Tensor
    draws: Mapping[int, Draw] = field(default_factory=dict)
    """By row; a row without one was sampled from the whole vocabulary at its temperature."""

    def blocks(self) -> list[slice]:
        """Return the slices of rows that are worked on at a time, in order."""
        rows = len(self.temperature_R)
        return [slice(start, min(start + _ROWS, rows)) for start in range(0, rows, _ROWS)]

    def scores(self, logits_RV: torch.Tensor, block: slice) -> Scores:
        """Return the scores of a block of rows, in float32."""
        values_BV = logits_RV[block].to(torch.float32, copy=True)
        device, width = values_BV.device, values_BV.shape[1]
        own = {row - block.start: self.draws[row] for row in range(block.start, block.stop) if row in self.draws}
        slopes = [
            slope for row, draw in own.items() if draw.shaping is not None for slope in _shape(values_BV, row, draw)
        ]
        temperature_B1 = self.temperature_R[block].float()[:, None]
        values_BV /= temperature_B1
        if any(draw.pattern is not None for draw in own.values()):
            outside_BV = np.zeros(values_BV.shape, np.bool_)
            for row, draw in own.items():
                outside_BV[row] = draw.outside(width)
            values_BV.masked_fill_(torch.from_numpy(outside_BV).to(device), -torch.inf)
        return Scores(block.start, values_BV, temperature_B1, slopes)


def _shape(values_BV: torch.Tensor, row: int, draw: Draw) -> list[_Slope]:
    """Apply a row's shaping in place, in vLLM's order: bias, repetition, frequency, presence."""
    assert draw.shaping is not None
    shaping, values_V, slopes = draw.shaping, values_BV[row], []
    width = len(values_V)

    def tensor(array: npt.ArrayLike, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.as_tensor(np.asarray(array), dtype=dtype, device=values_V.device)

    if biases := [(token, bias) for token, bias in shaping.logit_bias if token < width]:
        values_V[tensor([token for token, _ in biases], torch.int64)] += tensor([bias for _, bias in biases])
    if shaping.repetition_penalty != 1.0:
        seen = np.unique(draw.before)
        tokens = tensor(seen[seen < width], torch.int64)
        found = values_V[tokens]
        factor = torch.where(found > 0, 1.0 / shaping.repetition_penalty, shaping.repetition_penalty)
        values_V[tokens] = found * factor
        slopes.append(_Slope(row, tokens, factor))
    if shaping.frequency_penalty or shaping.presence_penalty:
        said, counts = np.unique(draw.before[draw.prompt :], return_counts=True)
        taken_off = shaping.frequency_penalty * counts + shaping.presence_penalty
        values_V[tensor(said[said < width], torch.int64)] -= tensor(taken_off[said < width])
    return slopes
