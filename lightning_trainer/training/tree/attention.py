"""Attention from every node of a token trie to itself and its ancestors, in blocks of queries.

A block attends to the keys that any of its queries may see: the path to its first node, and the block itself. Neither
an N x N mask nor its probabilities exist; memory is that of queries and keys, because the backward pass computes a
block's probabilities again (the scheme of FlashAttention: Dao et al., 2022, section 3.1, with blocks along the tree).

Registered with transformers under ``ATTENTION``; the pattern of a micro-batch travels to it through the model's keyword
arguments. Products are in the inputs' precision or autocast's, everything else in float32.

Legend: ``N`` nodes, ``H`` query heads, ``G`` key heads, ``D`` head size; of a block: ``Q`` queries, ``K`` keys.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lightning_trainer.errors import TrainingError

ATTENTION = "lightning_tree"
"""Name in transformers' registry of attention functions."""

_QUERIES = 64
"""Rows a block: fewer are many small products, more see keys that are masked. Measured on 4,000 nodes, paths of 400."""


class QueryBlock(NamedTuple):
    start: int
    stop: int
    keys_K: torch.Tensor
    """Nodes that some query of the block sees, ascending."""
    bias_QK: torch.Tensor
    """0 where the query sees the key, minus infinity elsewhere."""


class TreePattern:
    """Who sees whom in one micro-batch; an opaque value to everything between the engine and the attention."""

    def __init__(self, end_N: torch.Tensor, queries: int = _QUERIES) -> None:
        """``end_N``: one past the last node of each node's subtree (see ``trie``)."""
        nodes = torch.arange(len(end_N), device=end_N.device)
        self.layers_seen = 0
        """How often a layer asked: the engine checks that every layer did."""
        self.blocks: list[QueryBlock] = []
        for start in range(0, len(end_N), queries):
            stop = min(start + queries, len(end_N))
            keys = nodes[:stop][end_N[:stop] > start]
            query = nodes[start:stop, None]
            visible = (keys <= query) & (query < end_N[keys])
            bias = torch.zeros(visible.shape, device=end_N.device).masked_fill_(~visible, -torch.inf)
            self.blocks.append(QueryBlock(start, stop, keys, bias))


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
            d_value_GND.index_add_(1, block.keys_K, d_value.float())
            mean = (d_output.float() * output.float()).sum(-1, keepdim=True)
            d_scores = (d_output @ value.transpose(1, 2)).float().sub_(mean).mul_(probabilities).mul_(ctx.scaling)
            d_scores = d_scores.to(query.dtype)
            _rows(d_query_HND, block).copy_(_by_head(d_scores @ key, query_HND))
            d_key_GND.index_add_(1, block.keys_K, (d_scores.transpose(1, 2) @ query).float())
        return d_query_HND, d_key_GND.to(key_GND.dtype), d_value_GND.to(value_GND.dtype), None, None


def _of_block(block: QueryBlock, query_HND: torch.Tensor, key_GND: torch.Tensor, value_GND: torch.Tensor):
    """The block's queries, with the heads that share a key head as further rows, and its keys and values."""
    return (
        _by_group(_rows(query_HND, block), key_GND),
        key_GND.index_select(1, block.keys_K),
        value_GND.index_select(1, block.keys_K),
    )


def _scores(query: torch.Tensor, key: torch.Tensor, block: QueryBlock, scaling: float) -> torch.Tensor:
    """Masked scores ``[G, (H / G) * Q, K]`` in float32."""
    scores = (query @ key.transpose(1, 2)).float().mul_(scaling)
    scores.view(len(key), -1, *block.bias_QK.shape).add_(block.bias_QK)
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
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    output_HND = _BlockwiseAttention.apply(query[0], key[0], value[0], tree_pattern.blocks, scaling)
    return output_HND.transpose(0, 1)[None].contiguous(), None


def register() -> None:
    """Make the attention known to transformers; again is the same as once."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, tree_attention)
