"""What goes to flex attention on a GPU is the pattern that the CPU attends along."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention

from lightning_trainer.training.tree.attention import TreePattern, tree_attention
from lightning_trainer.training.tree.flex import block_mask
from lightning_trainer.training.tree.trie import build_trie

pytestmark = pytest.mark.torch


def _ends(seed: int, sequences: int, longest: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    drawn = [generator.integers(0, 2, generator.integers(1, longest)) for _ in range(sequences)]
    return torch.from_numpy(build_trie(drawn).end_N)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1_000), st.integers(1, 30), st.integers(2, 60))
def test_every_visible_pair_is_in_a_visited_block_and_the_mask_is_the_ancestors(seed, sequences, longest):
    end_N = _ends(seed, sequences, longest)
    mask, nodes = block_mask(end_N), torch.arange(len(end_N))
    ancestors = (nodes <= nodes[:, None]) & (nodes[:, None] < end_N)
    assert torch.equal(mask.mask_mod(nodes, nodes, nodes[:, None], nodes), ancestors)
    visited = mask.to_dense()[0, 0].bool().repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert not bool((ancestors & ~visited[: len(end_N), : len(end_N)]).any())


def test_blocks_without_a_visible_pair_are_left_out():
    end_N = torch.cat([torch.full((512,), 512), torch.full((512,), 1024)])  # two chains
    visited = block_mask(end_N).to_dense()[0, 0]
    assert torch.equal(visited, torch.block_diag(*[torch.ones(4, 4).tril()] * 2).to(visited.dtype))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_gives_what_the_blockwise_gives():
    end_N = _ends(0, 30, 60)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn((1, heads, len(end_N), 16), generator=generator) for heads in (6, 2, 2))
    ours, _ = tree_attention(torch.nn.Module(), query, key, value, None, scaling=0.3, tree_pattern=TreePattern(end_N))
    theirs = flex_attention(query, key, value, block_mask=block_mask(end_N), scale=0.3, enable_gqa=True)
    torch.testing.assert_close(theirs.transpose(1, 2), ours, rtol=0, atol=1e-5)
