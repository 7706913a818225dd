"""Attention from every node of a token trie to itself and its ancestors, in blocks of queries.

A block attends to the keys that any of its queries may see: the path to its first node, and the block itself. Keys that
all of its queries see need no mask; the others have one, and the two results are merged. Neither an N x N mask nor its
probabilities ever exist: PyTorch's kernel recomputes a block's probabilities in the backward pass (FlashAttention: Dao
et al., 2022, section 3.1). That is for the CPU; on a GPU the same pattern goes to flex attention (``flex``).

It is registered with transformers under ``ATTENTION``; a micro-batch's pattern reaches it through the model's keyword
arguments. Products are in the inputs' precision or autocast's, everything else in float32.

Legend: ``N`` nodes, ``H`` query heads, ``G`` key heads, ``D`` head size; of a block: ``Q`` queries, ``K``
keys, ``P`` of them not seen by all queries.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.tree.flex import BlockMask, block_mask, tree_flex

ATTENTION = "lightning_tree"
"""Name in transformers' registry of attention functions."""

_QUERIES = 256
"""Rows per block: with fewer there are many small products, with more there are many masked keys."""

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
"""PyTorch's kernels below ``scaled_dot_product_attention``, which hides the normalizers that merging needs."""


class Runs(NamedTuple):
    """Keys in runs of consecutive nodes."""

    slices: tuple[slice, ...]

    def rows(self, tensor_GND: torch.Tensor) -> torch.Tensor:
        """Return the keys' rows, ``[1, G, K, D]``; a single run is not copied."""
        runs = [tensor_GND[:, run] for run in self.slices]
        return (runs[0] if len(runs) == 1 else torch.cat(runs, 1))[None]

    def add(self, tensor_GND: torch.Tensor, rows_GKD: torch.Tensor) -> None:
        """Add values to the rows that ``rows`` returns."""
        done = 0
        for run in self.slices:
            length = run.stop - run.start
            tensor_GND[:, run] += rows_GKD[:, done : done + length]
            done += length


class Nodes(NamedTuple):
    """Keys by node number, ascending."""

    index_K: torch.Tensor

    def rows(self, tensor_GND: torch.Tensor) -> torch.Tensor:
        """Return the keys' rows, ``[1, G, K, D]``."""
        return tensor_GND.index_select(1, self.index_K)[None]

    def add(self, tensor_GND: torch.Tensor, rows_GKD: torch.Tensor) -> None:
        """Add values to the rows that ``rows`` returns."""
        tensor_GND.index_add_(1, self.index_K, rows_GKD.to(tensor_GND.dtype))


class QueryBlock(NamedTuple):
    """A run of queries, with the keys that all of them see and those that only some see."""

    start: int
    stop: int
    runs: tuple[slice, ...]
    """Runs of nodes that all queries of the block descend from."""
    others_P: torch.Tensor
    """Nodes that some queries see and others do not, ascending."""
    bias_QP: torch.Tensor
    """0 where the query sees such a key, minus infinity elsewhere."""

    def parts(self, query: torch.Tensor) -> Iterator[tuple[Runs | Nodes, torch.Tensor | None]]:
        """Yield keys, and what is added to their scores ``[1, 1, rows, P]``: None if all queries see them.

        Args:
            query: ``[G, rows, D]``, each key head's query heads one below the other.
        """
        yield (
            Nodes(self.others_P),
            self.bias_QP.to(query.dtype).repeat(query.shape[1] // len(self.bias_QP), 1)[None, None],
        )
        if self.runs:
            yield Runs(self.runs), None


class TreePattern:
    """Which node sees which in one micro-batch; opaque to everything between the engine and the attention.

    Its size is linear in the nodes: a node is among the ``others`` of the blocks that it and its last descendant are
    in, and every other block has it in a run.
    """

    def __init__(self, end_N: torch.Tensor, queries: int = _QUERIES) -> None:
        """``end_N``: one past the last node of each node's subtree (see ``trie``)."""
        self.end_N = end_N
        self.layers_seen = 0
        """Number of layers that used the pattern; the engine checks that every layer did."""
        self._queries = queries

    @cached_property
    def blocks(self) -> list[QueryBlock]:
        """Return the blocks of queries in order of nodes, for the CPU."""
        end, count = self.end_N.cpu().numpy(), len(self.end_N)
        path = np.empty(0, np.int64)  # of the block's first query, ascending
        found = []
        for start in range(0, count, self._queries):
            stop = min(start + self._queries, count)
            path = path[end[path] > start]
            whole = path[end[path] >= stop]
            own = np.arange(start, stop)
            others = np.concatenate([path[end[path] < stop], own])
            visible = (others <= own[:, None]) & (own[:, None] < end[others])
            bias = np.where(visible, np.float32(0), np.float32(-np.inf))
            others, bias = (torch.from_numpy(array).to(self.end_N.device) for array in (others, bias))
            found.append(QueryBlock(start, stop, _runs(whole), others, bias))
            path = np.concatenate([path, own])
        return found

    @cached_property
    def flex_mask(self) -> BlockMask:
        """Return the same pattern for flex attention."""
        return block_mask(self.end_N)


def _runs(nodes: npt.NDArray[np.int64]) -> tuple[slice, ...]:
    """Return ascending numbers as slices of consecutive ones."""
    if not len(nodes):
        return ()
    parts = np.split(nodes, np.flatnonzero(np.diff(nodes) != 1) + 1)
    return tuple(slice(int(part[0]), int(part[-1]) + 1) for part in parts)


class _BlockwiseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_HND: torch.Tensor,
        key_GND: torch.Tensor,
        value_GND: torch.Tensor,
        blocks: Sequence[QueryBlock],
        scaling: float,
    ) -> torch.Tensor:
        output_HND = torch.empty_like(query_HND)
        normalizers = []
        for block in blocks:
            query = _by_group(_rows(query_HND, block), key_GND)
            parts = [
                _FORWARD(query[None], keys.rows(key_GND), keys.rows(value_GND), attn_mask=bias, scale=scaling)
                for keys, bias in block.parts(query)
            ]
            output, normalizer = parts[0] if len(parts) == 1 else _merged(*parts)
            normalizers.append(normalizer)
            _rows(output_HND, block).copy_(output.reshape(len(query_HND), -1, output.shape[-1]))
        ctx.save_for_backward(query_HND, key_GND, value_GND, output_HND, *normalizers)
        ctx.blocks, ctx.scaling = blocks, scaling
        return output_HND

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query_HND, key_GND, value_GND, output_HND, *normalizers = ctx.saved_tensors
        d_query_HND = torch.empty_like(query_HND)
        d_key_GND = torch.zeros_like(key_GND, dtype=torch.float32)
        d_value_GND = torch.zeros_like(d_key_GND)
        for block, normalizer in zip(ctx.blocks, normalizers, strict=True):
            query, output, d_output = (
                _by_group(_rows(tensor, block), key_GND)[None] for tensor in (query_HND, output_HND, gradients[0])
            )
            d_query = query.new_zeros(query.shape, dtype=torch.float32)
            for keys, bias in block.parts(query[0]):
                # With the output and the normalizer over all keys, a part's gradients are its share of the whole's.
                of_part, d_key, d_value = _BACKWARD(
                    d_output,
                    query,
                    keys.rows(key_GND),
                    keys.rows(value_GND),
                    output,
                    normalizer,
                    0.0,
                    False,
                    attn_mask=bias,
                    scale=ctx.scaling,
                )
                d_query += of_part
                keys.add(d_key_GND, d_key[0])
                keys.add(d_value_GND, d_value[0])
            _rows(d_query_HND, block).copy_(d_query.reshape(len(query_HND), -1, d_query.shape[-1]))
        return d_query_HND, d_key_GND.to(key_GND.dtype), d_value_GND.to(value_GND.dtype), None, None


def _merged(*parts: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge attention over parts of the keys into attention over all: outputs weighted by their share of the sum.

    Source: Flash-Decoding (Dao et al., 2023), the reduction over splits.
    """
    (first, normalizer_of_first), (second, normalizer_of_second) = parts
    normalizer = torch.logaddexp(normalizer_of_first, normalizer_of_second)
    share_of_first = (normalizer_of_first - normalizer).exp_()[..., None]
    share_of_second = (normalizer_of_second - normalizer).exp_()[..., None]
    return first * share_of_first + second * share_of_second, normalizer


def _rows(tensor_HND: torch.Tensor, block: QueryBlock) -> torch.Tensor:
    return tensor_HND[:, block.start : block.stop]


def _by_group(tensor_HQD: torch.Tensor, key_GND: torch.Tensor) -> torch.Tensor:
    """Return the heads that share a key head as further rows: ``[G, (H / G) * Q, D]``."""
    return tensor_HQD.reshape(len(key_GND), -1, tensor_HQD.shape[-1])


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    tree_pattern: TreePattern | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend along the tree; transformers' attention interface.

    Args:
        query: ``[1, H, N, D]``; key and value ``[1, G, N, D]``.
        tree_pattern: the micro-batch's.

    Returns:
        ``[1, N, H, D]``.

    Raises:
        TrainingError: it was called outside the tree engine, or with dropout.
    """
    if tree_pattern is None or dropout:
        raise TrainingError(f"tree attention needs the engine's pattern and no dropout (dropout = {dropout})")
    tree_pattern.layers_seen += 1
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    scale = float(query.shape[-1] ** -0.5) if scaling is None else scaling
    if query.device.type != "cpu":
        return tree_flex(query, key, value, tree_pattern.flex_mask, scale).transpose(1, 2).contiguous(), None
    output_HND = _BlockwiseAttention.apply(query[0], key[0], value[0], tree_pattern.blocks, scale)
    return output_HND.transpose(0, 1)[None].contiguous(), None


def register() -> None:
    """Register the attention with transformers; idempotent."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, tree_attention)
