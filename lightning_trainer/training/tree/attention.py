"""Attention from every node of a token trie to itself and its ancestors, in blocks of queries.

No N x N mask exists: a block of queries attends to the keys that any of them may see, which is the path to the block's
first node and the block itself. Registered with transformers under ``ATTENTION``; the pattern of the micro-batch
travels to it through the model's keyword arguments.
"""

from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lightning_trainer.errors import TrainingError

ATTENTION = "lightning_tree"
"""Name in transformers' registry of attention functions."""

_QUERIES = 256
"""Query rows a block."""


class QueryBlock(NamedTuple):
    start: int
    stop: int
    keys_K: torch.Tensor
    """Nodes that some query of the block sees, ascending."""
    visible_QK: torch.Tensor
    """Boolean."""


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
            self.blocks.append(QueryBlock(start, stop, keys, (keys <= query) & (query < end_N[keys])))


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
        query: ``[1, heads, N, head size]``; key and value with their own number of heads.
        tree_pattern: of the micro-batch.

    Raises:
        TrainingError: it was called outside the tree engine, or with dropout.
    """
    if tree_pattern is None or dropout:
        raise TrainingError(f"tree attention needs the engine's pattern and no dropout (dropout = {dropout})")
    tree_pattern.layers_seen += 1
    groups = query.shape[1] // key.shape[1]
    outputs = []
    for block in tree_pattern.blocks:
        outputs.append(
            scaled_dot_product_attention(
                query[:, :, block.start : block.stop],
                key.index_select(2, block.keys_K).repeat_interleave(groups, 1),
                value.index_select(2, block.keys_K).repeat_interleave(groups, 1),
                attn_mask=block.visible_QK,
                scale=scaling,
            )
        )
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def register() -> None:
    """Make the attention known to transformers; again is the same as once."""
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, tree_attention)
