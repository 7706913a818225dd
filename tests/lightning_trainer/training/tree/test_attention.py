"""Attention along the tree is attention under the ancestors' mask, forward and backward."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.tree.attention import TreePattern, tree_attention
from lightning_trainer.training.tree.trie import build_trie

pytestmark = pytest.mark.torch


@pytest.fixture
def end_N() -> torch.Tensor:
    generator = np.random.default_rng(0)
    sequences = [generator.integers(0, 2, generator.integers(5, 30)) for _ in range(12)]
    return torch.from_numpy(build_trie(sequences).end_N)


def _inputs(nodes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def heads(count: int) -> torch.Tensor:
        return torch.randn((1, count, nodes, 8), generator=generator, requires_grad=True)

    return heads(6), heads(2), heads(2)


def _dense(query, key, value, end_N, scaling):
    nodes = torch.arange(len(end_N))
    visible = (nodes <= nodes[:, None]) & (nodes[:, None] < end_N)
    scores = query @ key.repeat_interleave(3, 1).transpose(-1, -2) * scaling
    probabilities = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return (probabilities @ value.repeat_interleave(3, 1)).transpose(1, 2)


@pytest.mark.parametrize("queries", [1, 7, 64, 10_000])
def test_it_equals_masked_attention_with_its_gradients(end_N, queries):
    inputs = _inputs(len(end_N))
    blockwise, _ = tree_attention(
        torch.nn.Module(), *inputs, None, scaling=0.3, tree_pattern=TreePattern(end_N, queries)
    )
    dense = _dense(*inputs, end_N, 0.3)
    upstream = torch.randn(dense.shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(blockwise, dense, rtol=0, atol=1e-5)
    for ours, theirs in zip(
        torch.autograd.grad(blockwise, inputs, upstream), torch.autograd.grad(dense, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_under_autocast_the_products_are_rounded_and_nothing_else(end_N):
    inputs = _inputs(len(end_N))
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _ = tree_attention(torch.nn.Module(), *inputs, None, tree_pattern=TreePattern(end_N))
    exact = _dense(*inputs, end_N, 8**-0.5)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=0.05)


def _keys(block) -> int:
    return sum(run.stop - run.start for run in block.runs) + len(block.others_P)


def test_no_block_holds_more_keys_than_its_paths():
    chain, leaves = list(range(1, 101)), 40
    trie = build_trie([np.array([*chain, 200 + leaf]) for leaf in range(leaves)])
    pattern = TreePattern(torch.from_numpy(trie.end_N), queries=10)
    assert max(map(_keys, pattern.blocks)) == 100 + 10


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=30), min_size=1, max_size=12), st.integers(1, 20))
def test_the_pattern_is_linear_in_the_nodes(sequences, queries):
    trie = build_trie([np.array(ids, np.int64) for ids in sequences])
    blocks = TreePattern(torch.from_numpy(trie.end_N), queries).blocks
    assert sum(len(block.others_P) for block in blocks) <= 2 * len(trie)
    assert all(block.bias_QP.shape == (block.stop - block.start, len(block.others_P)) for block in blocks)


def test_a_long_chain_needs_no_mask_but_on_the_diagonal():
    pattern = TreePattern(torch.full((32_768,), 32_768))
    assert sum(block.bias_QP.numel() for block in pattern.blocks) == 32_768 * 256
    assert max(len(block.runs) for block in pattern.blocks) == 1


def test_dropout_and_calls_from_elsewhere_are_refused(end_N):
    inputs = _inputs(len(end_N))
    with pytest.raises(TrainingError, match="dropout"):
        tree_attention(torch.nn.Module(), *inputs, None, dropout=0.1, tree_pattern=TreePattern(end_N))
    with pytest.raises(TrainingError, match="pattern"):
        tree_attention(torch.nn.Module(), *inputs, None)
