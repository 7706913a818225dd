"""Adapters on CPUs: two matrix products per adapter in a batch, instead of a copy of its matrices per token.

On CPUs vLLM gathers the matrices of every row's adapter before it multiplies (``torch_ops.lora_ops``): 64 copies for a
batch of 64 rows, which take most of the time of a pass. The rows of a batch run on few adapters, so here all rows of
one adapter are multiplied at once. Rows without an adapter are left alone; vLLM's gather reads their index, -1, as that
of the last adapter.

vLLM 0.31.0 (``PunicaWrapperCPU``). Upstream, about the -1 only: https://github.com/vllm-project/vllm/pull/48421.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch


class AdapterRows(NamedTuple):
    """Rows of a batch that one adapter is added to."""

    slot: int
    """The index of its matrices among the stacked ones."""
    rows: slice | torch.Tensor


def rows_by_adapter(slots: torch.Tensor) -> list[AdapterRows]:
    """Return the rows of each adapter in a batch.

    Args:
        slots: ``[T]``, the adapter's slot for each row; -1: none.
    """
    found, counts = torch.unique_consecutive(slots, return_counts=True)
    if len(found) == len(set(found.tolist())):
        ends = counts.cumsum(0).tolist()
        runs = zip(found.tolist(), [0, *ends], ends, strict=False)
        return [AdapterRows(slot, slice(start, end)) for slot, start, end in runs if slot >= 0]
    return [AdapterRows(slot, (slots == slot).nonzero().view(-1)) for slot in slots.unique().tolist() if slot >= 0]


def add_adapters(
    y: torch.Tensor,
    x: torch.Tensor,
    a_stacked: Sequence[torch.Tensor],
    b_stacked: Sequence[torch.Tensor],
    scale: float,
    batch: Sequence[AdapterRows],
) -> None:
    """Add ``scale * B A x`` to the rows of ``y``, in place.

    Args:
        y: ``[T, sum of out]``: the layer's output, whose slices lie side by side (as those of q, k and v).
        x: ``[T, in]``.
        a_stacked: for each slice ``[slots, 1, rank, in]``.
        b_stacked: for each slice ``[slots, 1, out, rank]``.
    """
    for slot, rows in batch:
        x_rows, begin = x[rows], 0
        for a, b in zip(a_stacked, b_stacked, strict=True):
            a_RI, b_OR = a[slot, 0], b[slot, 0]
            slice_TO = y[:, begin : begin + b_OR.shape[0]]
            low_rank = (x_rows @ a_RI.t()).to(b_OR.dtype)
            if isinstance(rows, slice):
                slice_TO[rows].addmm_(low_rank, b_OR.t(), alpha=scale)
            else:
                slice_TO.index_add_(0, rows, low_rank @ b_OR.t(), alpha=scale)
            begin += b_OR.shape[0]


def use_for_vllm() -> None:
    """Replace vLLM's own computation on CPUs."""
    from vllm.lora.punica_wrapper import punica_cpu

    class GroupedPunica(punica_cpu.PunicaWrapperCPU):
        """Groups the rows once per batch, for all layers."""

        def update_metadata(self, *args, **kwargs) -> None:
            super().update_metadata(*args, **kwargs)
            self._batch = rows_by_adapter(self.token_lora_indices)

        def add_lora_linear(
            self, y, x, lora_a_stacked, lora_b_stacked, scale, output_slices, *, buffer=None, **kwargs
        ) -> None:
            add_adapters(y, x.view(-1, x.shape[-1]), lora_a_stacked, lora_b_stacked, scale, self._batch)

    punica_cpu.PunicaWrapperCPU = GroupedPunica
