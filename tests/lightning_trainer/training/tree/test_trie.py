"""Promise 3 for the trainer: every root-to-leaf path is a sequence, exactly, and every token is computed once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.training.tree.trie import build_trie, divide, plan_micro_batches

_SEQUENCES = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=8).map(lambda ids: np.array(ids, np.int64)), min_size=1, max_size=8
)


def _prefixes(sequences) -> set[tuple[int, ...]]:
    return {tuple(sequence[: i + 1].tolist()) for sequence in sequences for i in range(len(sequence))}


@given(_SEQUENCES)
def test_a_path_spells_its_sequence(sequences):
    trie = build_trie(sequences)
    for sequence, path in zip(sequences, trie.paths, strict=True):
        assert trie.tokens_N[path].tolist() == sequence.tolist()
        assert trie.depth_N[path].tolist() == list(range(len(sequence)))


@given(_SEQUENCES)
def test_there_is_one_node_for_every_distinct_prefix(sequences):
    assert len(build_trie(sequences)) == len(_prefixes(sequences))


@given(_SEQUENCES)
def test_the_subtree_intervals_are_the_ancestors(sequences):
    trie = build_trie(sequences)
    prefix_of = {}
    for sequence, path in zip(sequences, trie.paths, strict=True):
        for depth, node in enumerate(path.tolist()):
            prefix_of[node] = tuple(sequence[: depth + 1].tolist())
    for i in range(len(trie)):
        for j in range(len(trie)):
            is_ancestor = prefix_of[j][: len(prefix_of[i])] == prefix_of[i]
            assert (i <= j < trie.end_N[i]) == is_ancestor


@given(_SEQUENCES, st.integers(1, 20))
def test_micro_batches_hold_every_sequence_once_and_keep_to_the_budget(sequences, budget):
    batches = plan_micro_batches(sequences, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(sequences)))
    for batch in batches:
        nodes = len(build_trie([sequences[index] for index in batch]))
        assert nodes <= budget or len(batch) == 1


def test_sequences_with_a_common_prefix_stay_together():
    a, b = [np.array([1, 1, 1, i]) for i in range(4)], [np.array([2, 2, 2, i]) for i in range(4)]
    mixed = [sequence for pair in zip(a, b, strict=True) for sequence in pair]
    assert [sorted(batch) for batch in plan_micro_batches(mixed, 7)] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_large_token_ids_sort_as_numbers():
    sequences = [np.array(ids) for ids in ([70_000, 1], [255, 256], [70_000, 2], [256, 255])]
    assert len(build_trie(sequences)) == 7


def _tries(sequences, cuts) -> list[int]:
    return [len(build_trie([sequences[index] for index in cut])) if cut else 0 for cut in cuts]


def _all_cuts(sequences):
    """Every way to cut the sorted sequences into runs."""
    order = sorted(range(len(sequences)), key=lambda index: sequences[index].tolist())
    for bits in range(2 ** (len(order) - 1)):
        cuts = [[order[0]]]
        for position, index in enumerate(order[1:]):
            cuts.append([index]) if bits >> position & 1 else cuts[-1].append(index)
        yield cuts


@pytest.mark.long
@given(_SEQUENCES, st.integers(1, 20))
def test_no_cut_under_the_budget_costs_less(sequences, budget):
    def cost(cuts):
        return sum(_tries(sequences, cuts)) + 64 * len(cuts)

    allowed = (
        cuts
        for cuts in _all_cuts(sequences)
        if all(nodes <= budget or len(cut) == 1 for nodes, cut in zip(_tries(sequences, cuts), cuts, strict=True))
    )
    assert cost(plan_micro_batches(sequences, budget)) == min(map(cost, allowed))


def test_a_forced_cut_falls_between_groups_and_not_into_one():
    generator = np.random.default_rng(0)
    common, sequences = generator.integers(0, 9_000, 10), []
    for _ in range(4):
        task = np.concatenate([common, generator.integers(0, 9_000, 100)])
        sequences += [np.concatenate([task, generator.integers(0, 9_000, 10)]) for _ in range(8)]
    whole = len(build_trie(sequences))
    batches = plan_micro_batches(sequences, 250)  # one group and three quarters of the next
    assert sum(_tries(sequences, batches)) == whole + 3 * len(common)
    assert {len(batch) for batch in batches} == {8}


@given(_SEQUENCES, st.integers(1, 4))
def test_the_largest_part_is_as_small_as_cuts_allow(sequences, parts):
    divided = divide(sequences, parts)
    assert len(divided) == parts
    assert sorted(index for part in divided for index in part) == list(range(len(sequences)))
    allowed = (cuts for cuts in _all_cuts(sequences) if len(cuts) <= parts)
    assert max(_tries(sequences, divided)) == min(max(_tries(sequences, cuts)) for cuts in allowed)
