"""Sequences to a trie of tokens in depth-first preorder, and batches to micro-batches of bounded trie size.

Invariant: sequences inserted in lexicographic order give nodes in preorder, so the subtree of node ``i`` is the
interval ``[i, end[i])`` and "``i`` is ``j`` or an ancestor of ``j``" is ``i <= j < end[i]``. That one vector is the
whole attention pattern. Concatenating the tokens along a root-to-leaf path gives a sequence exactly.

Legend: ``N`` nodes, ``L`` tokens of one sequence.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_MICRO_BATCH_NODES = 64
"""What a micro-batch costs in addition to its tokens, in tokens: among equally good cuts, the fewest win."""


@dataclass(frozen=True, slots=True)
class TokenTrie:
    """The unique tokens of some sequences; a token is the same as another only if everything before it is."""

    tokens_N: Ints
    depth_N: Ints
    """Position of the token in every sequence that passes through it."""
    end_N: Ints
    """One past the last node of the subtree."""
    paths: tuple[Ints, ...]
    """For every sequence, in the order they were given, the node of each of its tokens ``[L]``."""

    def __len__(self) -> int:
        return len(self.tokens_N)


def build_trie(sequences: Sequence[Ints]) -> TokenTrie:
    """Fold sequences into their trie.

    Args:
        sequences: token ids ``[L]`` each, not negative; empty ones are allowed and have an empty path.
    """
    capacity = sum(len(sequence) for sequence in sequences)
    tokens, depth, end = (np.empty(capacity, np.int64) for _ in range(3))
    paths: list[Ints] = [np.empty(0, np.int64)] * len(sequences)
    size, previous = 0, None
    for index in _lexicographic_order(sequences):
        sequence = sequences[index]
        shared = 0 if previous is None else _shared_prefix(sequences[previous], sequence)
        added = np.arange(size, size + len(sequence) - shared)
        tokens[added] = sequence[shared:]
        depth[added] = np.arange(shared, len(sequence))
        size += len(added)
        known = paths[previous][:shared] if previous is not None else added[:0]
        paths[index] = np.concatenate([known, added])
        end[paths[index]] = size
        previous = index
    return TokenTrie(tokens[:size].copy(), depth[:size].copy(), end[:size].copy(), tuple(paths))


def plan_micro_batches(sequences: Sequence[Ints], max_nodes: int) -> list[list[int]]:
    """Cut the lexicographic order into micro-batches of at most ``max_nodes`` unique tokens, as well as cuts can.

    Sequences that share a prefix are neighbors in that order, so at a cut, what the sequences on both sides of it share
    is computed once more. The cuts are those with the smallest sum of trie sizes, counting ``_MICRO_BATCH_NODES`` for
    each (dynamic programming). A sequence longer than ``max_nodes`` has a micro-batch of its own.

    Returns:
        Indices into ``sequences``, each exactly once.
    """
    order = _lexicographic_order(sequences)
    lengths, grown = _growth(sequences, order)
    # The trie of order[i:j] has lengths[i] - grown[i] + grown[j - 1] nodes: a sliding minimum finds the best i for j.
    starts, before = [0] * len(order), 0.0
    candidates: deque[tuple[float, int]] = deque()
    for last in range(len(order)):
        added = before + lengths[last] - grown[last]
        while candidates and candidates[-1][0] >= added:
            candidates.pop()
        candidates.append((added, last))
        while candidates[0][1] < last and _nodes(lengths, grown, candidates[0][1], last) > max_nodes:
            candidates.popleft()
        added, starts[last] = candidates[0]
        before = added + grown[last] + _MICRO_BATCH_NODES
    batches: list[list[int]] = []
    last = len(order) - 1
    while last >= 0:
        batches.append(order[starts[last] : last + 1])
        last = starts[last] - 1
    return batches[::-1]


def divide(sequences: Sequence[Ints], parts: int) -> list[list[int]]:
    """Cut the lexicographic order into parts whose largest trie is as small as cuts allow.

    Returns:
        ``parts`` lists of indices into ``sequences``, each index exactly once; some are empty if there are fewer
        sequences.
    """
    order = _lexicographic_order(sequences)
    lengths, grown = _growth(sequences, order)

    def cut(most: int) -> list[list[int]]:
        cuts, start = [], 0
        for last in range(len(order)):
            if last > start and _nodes(lengths, grown, start, last) > most:
                cuts.append(order[start:last])
                start = last
        return [*cuts, order[start:]]

    low, high = 1, sum(lengths)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(cut(middle)) <= parts else (middle + 1, high)
    found = cut(high)
    return [*found, *[[] for _ in range(parts - len(found))]]


def _growth(sequences: Sequence[Ints], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the lengths in this order, and how many nodes the trie of the first ``i + 1`` sequences has."""
    lengths = [len(sequences[index]) for index in order]
    shared = [_shared_prefix(sequences[a], sequences[b]) for a, b in pairwise(order)]
    grown = np.cumsum(np.array(lengths, np.int64) - np.array([0, *shared][: len(lengths)], np.int64)).tolist()
    return lengths, grown


def _nodes(lengths: Sequence[int], grown: Sequence[int], first: int, last: int) -> int:
    """Return the number of nodes of the trie of the sequences ``first`` to ``last`` of the order."""
    return lengths[first] + grown[last] - grown[first]


def _lexicographic_order(sequences: Sequence[Ints]) -> list[int]:
    # Big-endian bytes of non-negative integers compare as the integers do, and a prefix comes before its extensions.
    keys = [sequence.astype(">i8").tobytes() for sequence in sequences]
    return sorted(range(len(sequences)), key=keys.__getitem__)


def _shared_prefix(a: Ints, b: Ints) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
