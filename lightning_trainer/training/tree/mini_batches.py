"""A step's samples cut into mini-batches, and the order in which the epochs visit them.

The batch is cut once and every epoch visits the same parts, as in verl: what a part shares is computed once in each
visit, and a forward pass over a part before the first update rounds in the same way as the one in the update. Parts are
runs of whole groups in the order of the token tree, of about as many trained tokens each. A group is never divided: its
advantages are relative to each other, and half of it would push in one direction. Nor does a group ever form a part
alone if there is another one: Adam's step is as long for a group that says little as for one that says much.

Everything is a function of samples, seed and step: a step that is repeated is divided and visited as before.
"""

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise

from lightning_trainer.types import Sample

GROUPS_AT_LEAST = 2
"""Least number of groups in a mini-batch, if the batch has as many."""


def cut(samples: Sequence[Sample], count: int) -> list[list[Sample]]:
    """Return ``count`` mini-batches, or as many as there are pairs of groups; each sample is in exactly one.

    Args:
        samples: each with at least one trained token.
        count: how many are wanted, 1 or more. One is the batch as it is.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample)
    count = min(count, len(groups) // GROUPS_AT_LEAST)
    if count <= 1:
        return [list(samples)]
    # Samples that share a prefix are neighbors in the order of the tree, so a cut separates as little as it can.
    in_tree_order = sorted(groups.values(), key=lambda group: min(tuple(one.token_ids) for one in group))
    tokens = [sum(sum(sample.loss_mask) for sample in group) for group in in_tree_order]
    return [
        [sample for group in in_tree_order[start:end] for sample in group]
        for start, end in pairwise(_bounds(tokens, count))
    ]


def visits(count: int, epochs: int, *, seed: int, step: int) -> list[int]:
    """Return the indices of ``count`` mini-batches in the order of their updates: each once per epoch, reshuffled."""
    order: list[int] = []
    for epoch in range(epochs):
        order += random.Random(f"{seed} {step} {epoch}").sample(range(count), count)
    return order


def _bounds(tokens: Sequence[int], parts: int) -> list[int]:
    """Return where each part starts, and the end: cut where the tokens so far are nearest to their share."""
    before = [0, *accumulate(tokens)]
    bounds = [0]
    for number in range(1, parts):
        share = before[-1] * number / parts
        earliest = bounds[-1] + GROUPS_AT_LEAST
        latest = len(tokens) - GROUPS_AT_LEAST * (parts - number)
        bounds.append(min(range(earliest, latest + 1), key=lambda bound: abs(before[bound] - share)))
    return [*bounds, len(tokens)]
