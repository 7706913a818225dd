"""What goes to flex attention on a GPU is the pattern that the CPU attends along."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention

from lightning_trainer.training.tree.attention import TreePattern, tree_attention
from lightning_trainer.training.tree.flex import block_mask, shape_class, tree_flex
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
    theirs = tree_flex(query, key, value, block_mask(end_N), 0.3, attend=flex_attention)
    torch.testing.assert_close(theirs.transpose(1, 2), ours, rtol=0, atol=1e-5)


@given(st.integers(1, 2**22))
def test_a_shape_class_has_room_for_its_nodes_and_little_more(nodes):
    rows = shape_class(nodes)
    assert rows >= nodes
    assert rows % 128 == 0
    assert rows - nodes < max(128, nodes / 8 + 1)
    assert shape_class(rows) == rows


def test_so_many_nodes_as_a_micro_batch_may_have_fall_into_few_shape_classes():
    assert len({shape_class(nodes) for nodes in range(1, 65537)}) == 56


@pytest.mark.gpu
@pytest.mark.parametrize("nodes", [300, 5000])
def test_on_a_gpu_it_gives_what_the_cpu_gives_forward_and_backward(nodes):
    end_N = _ends(1, nodes // 20, 60)
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn((1, heads, len(end_N), 64), generator=generator) for heads in (8, 2, 2)]
    found = []
    for device in ("cpu", "cuda"):
        leaves = query, key, value = [tensor.to(device).detach().requires_grad_() for tensor in tensors]
        pattern = TreePattern(end_N.to(device))
        output, _ = tree_attention(torch.nn.Module(), query, key, value, None, scaling=0.125, tree_pattern=pattern)
        output.square().sum().backward()
        found.append([output.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves if leaf.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=2e-2, atol=2e-2)
