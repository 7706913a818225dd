"""Trained weights as they are served: rounded to bfloat16 so that what was learned arrives there.

A step moves a weight by about the learning rate, 1e-6 to 1e-4, and bfloat16 tells a weight of 0.1 from its neighbor at
a distance of 5e-4. Rounded to nearest, most weights are served as they were for tens or hundreds of steps, however
surely they move. Here each weight has a threshold of its own, and is rounded up if its distance above its lower
neighbor exceeds that: of many weights that have moved by a tenth of the distance, a tenth is served as moved. The mean
is exact; what remains is noise that no gradient points along.

The thresholds are fixed, so the served values follow from the weights alone: the same after a restart, a rollback, or
with another number of processes. What bfloat16 represents exactly stays as it is.

Source: stochastic rounding (Gupta et al., 2015, arXiv 1502.02551, section 3) with the random numbers fixed, which is
dithering (Roberts, 1962); the thresholds are the golden ratio's multiples modulo 1.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

_PERIOD = 65521
"""Period of the thresholds: a prime, so that no two rows of a matrix have the same ones."""
_GOLDEN = 0.6180339887498949
_LOW_BITS = 0xFFFF
"""The bits of a float32 that bfloat16 does not have."""
_AT_ONCE = 64 * _PERIOD


@contextmanager
def rounded_weights(module: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Let the module compute with the values that are served; afterwards it has its own back, bit for bit.

    Trained weights are rounded by thresholds, all others to nearest. What rounding leaves as it is (a frozen model that
    was in ``dtype`` from the start) is not copied; of a trained weight two bytes are kept meanwhile.
    """
    lows: dict[str, torch.Tensor] = {}
    masters: dict[str, torch.Tensor] = {}
    forget_gathered(module)
    try:
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                own = local_values(parameter)
                if parameter.requires_grad and _is_dithered(own, dtype):
                    lows[name] = round_by_thresholds(own, first_index(parameter))
                    continue
                rounded = own.to(dtype)
                if rounded.dtype != own.dtype and not torch.equal(rounded.to(own.dtype), own):
                    masters[name] = own.clone()
                    own.copy_(rounded)
        yield
    finally:
        forget_gathered(module)
        # Looked up by name, since offloading between two passes moves values.
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in masters:
                    local_values(parameter).copy_(masters.pop(name))
                elif name in lows:
                    undo_rounding(local_values(parameter), lows.pop(name), first_index(parameter))


def forget_gathered(module: torch.nn.Module) -> None:
    """Drop FSDP's gathered copies, which a forward pass alone leaves: they would hide later changes."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def local_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this process holds of a parameter: all of it, in one process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_index(tensor: torch.Tensor) -> int:
    """Return the place in the whole tensor, flattened, of the first value that this process holds."""
    if not isinstance(tensor, DTensor):
        return 0
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if any(offset[1:]):
        raise ValueError(f"a parameter of shape {tuple(tensor.shape)} is divided other than by rows")
    return offset[0] * math.prod(tensor.shape[1:]) if offset else 0


def round_by_thresholds(values: torch.Tensor, first: int) -> torch.Tensor:
    """Round float32 values in place to those of bfloat16.

    Args:
        values: contiguous.
        first: number of the first value's threshold.

    Returns:
        What ``undo_rounding`` needs: the values' low 16 bits, int16.
    """
    bits = values.view(torch.int32).view(-1)
    low = bits.to(torch.int16)
    for part, thresholds in _with_thresholds(bits, first):
        part.add_(thresholds).bitwise_and_(~_LOW_BITS)
    return low


def undo_rounding(values: torch.Tensor, low: torch.Tensor, first: int) -> None:
    """Take back, bit for bit, what ``round_by_thresholds`` did."""
    bits, start = values.view(torch.int32).view(-1), 0
    low = low.to(bits.device)
    for part, thresholds in _with_thresholds(bits, first):
        own = low[start : start + part.numel()].to(torch.int32).bitwise_and_(_LOW_BITS).view_as(part)
        part.add_(own)
        part.sub_(own.add_(thresholds).bitwise_and_(_LOW_BITS + 1))  # this bit is set where a value was rounded up
        start += part.numel()


def _is_dithered(own: torch.Tensor, dtype: torch.dtype) -> bool:
    return dtype is torch.bfloat16 and own.dtype is torch.float32 and own.is_contiguous()


def _with_thresholds(bits: torch.Tensor, first: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield all values in order, part by part, with thresholds that broadcast over a part."""
    thresholds = _thresholds(bits.device).roll(-(first % _PERIOD))
    whole = bits.numel() - bits.numel() % _PERIOD
    for start in range(0, whole, _AT_ONCE):
        yield bits[start : min(start + _AT_ONCE, whole)].view(-1, _PERIOD), thresholds
    if whole < bits.numel():
        yield bits[whole:], thresholds[: bits.numel() - whole]


@cache
def _thresholds(device: torch.device) -> torch.Tensor:
    """Return 16-bit numbers, int32, evenly spread over any stretch of them."""
    multiples = torch.arange(_PERIOD, dtype=torch.float64) * _GOLDEN
    return ((multiples - multiples.floor()) * (_LOW_BITS + 1)).to(torch.int32).to(device)
