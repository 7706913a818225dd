"""The tree's attention pattern for PyTorch's flex attention, which is what GPUs compute it with.

A block of queries visits each block of keys that has a node which one of the queries descends from. Only a table of
(blocks x blocks) is made, never a mask of (nodes x nodes). On the CPU, flex attention has only a forward pass.

Kernels are compiled once per shape class: numbers of nodes are rounded up to one of eight per octave, so that a run
needs few kernels and none computes more than an eighth, or one block, too many rows. The added rows see nothing, and
nothing sees them.

Source: Dong et al., Flex Attention (arXiv 2412.05496), section 3.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch._dynamo
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

_BLOCK = 128
"""Queries and keys per block: what the kernels are written for."""
_CLASSES = 128
"""Number of shape classes up to 8 million nodes, with and without gradients: by default, dynamo keeps 8 per
function."""


def shape_class(nodes: int) -> int:
    """Return how many rows the kernel for this many nodes has: whole blocks, at most an eighth or one block more."""
    step = max(_BLOCK, 1 << max(0, nodes.bit_length() - 4))
    return -(-nodes // step) * step


def block_mask(end_N: torch.Tensor) -> BlockMask:
    """Return which query sees which key: query ``q`` sees key ``k`` if ``k <= q < end[k]``.

    Args:
        end_N: one past the last node of each node's subtree (see ``trie``).

    Returns:
        A mask of the shape class of this many nodes.
    """
    nodes = len(end_N)
    blocks = shape_class(nodes) // _BLOCK
    # Kernels compute whole blocks: the rows after the last node have no descendants.
    padded = torch.cat([end_N, end_N.new_zeros(blocks * _BLOCK - nodes)])
    furthest = padded.view(blocks, _BLOCK).amax(1).cpu().numpy()
    first = np.arange(blocks) * _BLOCK
    visited = (first <= first[:, None]) & (first[:, None] < furthest)
    counts = torch.from_numpy(visited.sum(1).astype(np.int32)).to(end_N.device)
    indices = np.argsort(~visited, axis=1, kind="stable").astype(np.int32)  # first those to visit, the rest is not read

    def visible(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < padded[key])

    return BlockMask.from_kv_blocks(
        counts[None, None],
        torch.from_numpy(indices).to(end_N.device)[None, None],
        BLOCK_SIZE=_BLOCK,
        mask_mod=visible,
        seq_lengths=(blocks * _BLOCK, blocks * _BLOCK),
    )


def tree_flex(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: BlockMask,
    scaling: float,
    attend: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """Attend; ``[1, H, N, D]`` queries, ``[1, G, N, D]`` keys and values to ``[1, H, N, D]``.

    Args:
        mask: of the nodes' shape class.
        attend: flex attention; compiled when absent.
    """
    nodes = query.shape[2]
    filled = (pad(tensor, (0, 0, 0, mask.seq_lengths[0] - nodes)) for tensor in (query, key, value))
    output = (attend or _compiled())(*filled, block_mask=mask, scale=scaling, enable_gqa=True)
    return output[:, :, :nodes]


@cache
def _compiled() -> Any:
    """Return flex attention, compiled for each shape class; uncompiled, it would build the matrix of scores."""
    torch._dynamo.config.cache_size_limit = max(torch._dynamo.config.cache_size_limit, _CLASSES)
    return torch.compile(flex_attention, dynamic=False)
