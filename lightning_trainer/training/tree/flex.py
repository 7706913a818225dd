"""The tree's attention pattern for PyTorch's flex attention, which is what GPUs compute it with.

A block of queries visits the blocks of keys with a node that one of its queries descends from. What is made is a table
of (blocks x blocks), never a mask of (nodes x nodes). On the CPU flex attention has a forward pass alone.

Source: Dong et al., Flex Attention (arXiv 2412.05496), section 3.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

_BLOCK = 128
"""Queries and keys a block: what the kernels are written for."""


def block_mask(end_N: torch.Tensor) -> BlockMask:
    """Return who sees whom: query ``q`` sees key ``k`` where ``k <= q < end[k]``.

    Args:
        end_N: one past the last node of each node's subtree (see ``trie``).
    """
    nodes = len(end_N)
    blocks = -(-nodes // _BLOCK)
    # Kernels compute whole blocks: what is behind the last node has no descendants.
    padded = torch.cat([end_N, end_N.new_zeros(blocks * _BLOCK - nodes)])
    furthest = padded.view(blocks, _BLOCK).amax(1).cpu().numpy()
    first = np.arange(blocks) * _BLOCK
    visited = (first <= first[:, None]) & (first[:, None] < furthest)
    counts = torch.from_numpy(visited.sum(1).astype(np.int32)).to(end_N.device)
    indices = np.argsort(~visited, axis=1, kind="stable").astype(np.int32)  # those to visit first, the rest is not read

    def visible(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < padded[key])

    return BlockMask.from_kv_blocks(
        counts[None, None],
        torch.from_numpy(indices).to(end_N.device)[None, None],
        BLOCK_SIZE=_BLOCK,
        mask_mod=visible,
        seq_lengths=(nodes, nodes),
    )


def compiled_flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: BlockMask, scaling: float
) -> torch.Tensor:
    """Attend; ``[1, H, N, D]`` queries, ``[1, G, N, D]`` keys and values to ``[1, H, N, D]``."""
    return _compiled()(query, key, value, block_mask=mask, scale=scaling, enable_gqa=True)


@cache
def _compiled() -> Any:
    """Compiled once, for any number of nodes; not compiled it would make the matrix of scores."""
    return torch.compile(flex_attention, dynamic=True)
