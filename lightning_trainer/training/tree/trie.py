"""Sequences to a trie of tokens in depth-first preorder, and batches to micro-batches of bounded trie size.

Invariant: sequences inserted in lexicographic order give nodes in preorder, so the subtree of node ``i`` is the
interval ``[i, end[i])`` and "``i`` is ``j`` or an ancestor of ``j``" is ``i <= j < end[i]``. That one vector is the
whole attention pattern. Concatenating the tokens along a root-to-leaf path gives a sequence exactly.

Legend: ``N`` nodes, ``L`` tokens of one sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


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
    """Cut the lexicographic order where the trie would outgrow ``max_nodes``: what shares a prefix stays together.

    A sequence longer than ``max_nodes`` has a micro-batch of its own.

    Returns:
        Indices into ``sequences``, each exactly once.
    """
    batches: list[list[int]] = []
    size = 0
    for index in _lexicographic_order(sequences):
        length = len(sequences[index])
        added = length
        if batches:
            added -= _shared_prefix(sequences[batches[-1][-1]], sequences[index])
        if batches and size + added <= max_nodes:
            batches[-1].append(index)
            size += added
        else:
            batches.append([index])
            size = length
    return batches


def _lexicographic_order(sequences: Sequence[Ints]) -> list[int]:
    # Big-endian bytes of non-negative integers compare as the integers do, and a prefix comes before its extensions.
    keys = [sequence.astype(">i8").tobytes() for sequence in sequences]
    return sorted(range(len(sequences)), key=keys.__getitem__)


def _shared_prefix(a: Ints, b: Ints) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
