"""Attention from every node of a token trie to itself and its ancestors, in blocks of queries.

A block attends to the keys that any of its queries may see: the path to its first node, and the block itself. Neither
an N x N mask nor its probabilities exist; memory is that of queries and keys, because the backward pass computes a
block's probabilities again (the scheme of FlashAttention: Dao et al., 2022, section 3.1, with blocks along the tree).
That is for the CPU; on a GPU the same pattern goes to PyTorch's flex attention (``flex``).

Registered with transformers under ``ATTENTION``; the pattern of a micro-batch travels to it through the model's keyword
arguments. Products are in the inputs' precision or autocast's, everything else in float32.

Legend: ``N`` nodes, ``H`` query heads, ``G`` key heads, ``D`` head size; of a block: ``Q`` queries, ``K``
keys, ``P`` of them not seen by all queries.
"""

from collections.abc import Sequence
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

_QUERIES = 64
"""Rows a block: fewer are many small products, more see keys that are masked. Measured on 4,000 nodes, paths of 400."""


class QueryBlock(NamedTuple):
    """Its keys are those that every query sees, run after run, and then the others."""

    start: int
    stop: int
    runs: tuple[slice, ...]
    """Consecutive nodes that all queries of the block descend from."""
    others_P: torch.Tensor
    """Nodes that some query sees and another does not, ascending."""
    bias_QP: torch.Tensor
    """0 where the query sees such a key, minus infinity elsewhere."""

    def keys(self, tensor_GND: torch.Tensor) -> torch.Tensor:
        """The rows of the keys ``[G, K, D]``."""
        seen = [tensor_GND[:, run] for run in self.runs]
        return torch.cat([*seen, tensor_GND.index_select(1, self.others_P)], 1)

    def add_to_keys(self, tensor_GND: torch.Tensor, rows_GKD: torch.Tensor) -> None:
        """Add what ``keys`` would have taken from there."""
        done = 0
        for run in self.runs:
            length = run.stop - run.start
            tensor_GND[:, run] += rows_GKD[:, done : done + length]
            done += length
        tensor_GND.index_add_(1, self.others_P, rows_GKD[:, done:])


class TreePattern:
    """Who sees whom in one micro-batch; an opaque value to everything between the engine and the attention.

    Its size is linear in the nodes: a node is among the ``others`` of the blocks that it and its last descendant are
    in, and every other block has it in a run.
    """

    def __init__(self, end_N: torch.Tensor, queries: int = _QUERIES) -> None:
        """``end_N``: one past the last node of each node's subtree (see ``trie``)."""
        self.end_N = end_N
        self.layers_seen = 0
        """How often a layer asked: the engine checks that every layer did."""
        self._queries = queries

    @cached_property
    def blocks(self) -> list[QueryBlock]:
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
        """The same for flex attention."""
        return block_mask(self.end_N)


def _runs(nodes: npt.NDArray[np.int64]) -> tuple[slice, ...]:
    """Ascending numbers as slices of consecutive ones."""
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
            query, key, value = _of_block(block, query_HND, key_GND, value_GND)
            scores = _scores(query, key, block, scaling)
            probabilities = scores.softmax(-1)
            # log(sum(exp(scores))) without another pass of exp: softmax's largest value is exp(largest - normalizer)
            normalizers.append(scores.amax(-1, keepdim=True) - probabilities.amax(-1, keepdim=True).log_())
            _rows(output_HND, block).copy_(_by_head(probabilities.to(query.dtype) @ value, query_HND))
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
            query, key, value = _of_block(block, query_HND, key_GND, value_GND)
            d_output = _by_group(_rows(gradients[0], block), key_GND)
            output = _by_group(_rows(output_HND, block), key_GND)
            probabilities = _scores(query, key, block, ctx.scaling).sub_(normalizer).exp_()
            d_value = probabilities.to(query.dtype).transpose(1, 2) @ d_output
            block.add_to_keys(d_value_GND, d_value.float())
            mean = (d_output.float() * output.float()).sum(-1, keepdim=True)
            d_scores = (d_output @ value.transpose(1, 2)).float().sub_(mean).mul_(probabilities).mul_(ctx.scaling)
            d_scores = d_scores.to(query.dtype)
            _rows(d_query_HND, block).copy_(_by_head(d_scores @ key, query_HND))
            block.add_to_keys(d_key_GND, (d_scores.transpose(1, 2) @ query).float())
        return d_query_HND, d_key_GND.to(key_GND.dtype), d_value_GND.to(value_GND.dtype), None, None


def _of_block(block: QueryBlock, query_HND: torch.Tensor, key_GND: torch.Tensor, value_GND: torch.Tensor):
    """The block's queries, with the heads that share a key head as further rows, and its keys and values."""
    return _by_group(_rows(query_HND, block), key_GND), block.keys(key_GND), block.keys(value_GND)


def _scores(query: torch.Tensor, key: torch.Tensor, block: QueryBlock, scaling: float) -> torch.Tensor:
    """Masked scores ``[G, (H / G) * Q, K]`` in float32."""
    scores = (query @ key.transpose(1, 2)).float().mul_(scaling)
    queries, others = block.bias_QP.shape
    scores.view(len(key), -1, queries, scores.shape[-1])[..., -others:].add_(block.bias_QP)
    return scores


def _rows(tensor_HND: torch.Tensor, block: QueryBlock) -> torch.Tensor:
    return tensor_HND[:, block.start : block.stop]


def _by_group(tensor_HQD: torch.Tensor, key_GND: torch.Tensor) -> torch.Tensor:
    return tensor_HQD.reshape(len(key_GND), -1, tensor_HQD.shape[-1])


def _by_head(tensor: torch.Tensor, query_HND: torch.Tensor) -> torch.Tensor:
    return tensor.view(len(query_HND), -1, tensor.shape[-1])


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
        tree_pattern: of the micro-batch.

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
    """Make the attention known to transformers; again is the same as once."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, tree_attention)
