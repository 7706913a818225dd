"""Mini-batches: whole groups, at least two each, evenly filled, neighbors in the tree; the same for the same step."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_instrumentation.spans.packing import pack_token_ids

from lightning_trainer.token_ids import TokenIds
from lightning_trainer.training.tree.mini_batches import GROUPS_AT_LEAST, cut, visits
from lightning_trainer.types import Sample, Segment


def _sample(name: str, group: str, ids: list[int], trained: int) -> Sample:
    start = len(ids) - trained
    return Sample(
        sample_id=name,
        policy="p",
        agent="a",
        group_id=group,
        attempt_id=name,
        token_ids=TokenIds(pack_token_ids(ids)),  # as they come off a span
        loss_mask=(0,) * start + (1,) * trained,
        behavior_logprobs=(0.0,) * start + (-1.0,) * trained,
        segments=(Segment(start, len(ids), name, 0, 1.0, name),),
    )


def _groups(sizes: list[tuple[int, int]], seed: int = 0) -> list[Sample]:
    """Groups of (samples, trained tokens each) under one common prefix, shuffled as a batch may be."""
    source = random.Random(seed)
    samples = []
    for group, (members, trained) in enumerate(sizes):
        prompt = [7, 7, 7, *(source.randrange(100) for _ in range(4))]
        for member in range(members):
            answer = [source.randrange(100) for _ in range(trained)]
            samples.append(_sample(f"{group}/{member}", f"g{group}", prompt + answer, trained))
    source.shuffle(samples)
    return samples


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30)), min_size=1, max_size=20),
    st.integers(1, 20),
    st.integers(0, 3),
)
def test_every_sample_is_in_one_mini_batch_with_its_group_and_another_group(sizes, count, seed):
    samples = _groups(sizes, seed)
    parts = cut(samples, count)
    assert sorted(sample.sample_id for part in parts for sample in part) == sorted(one.sample_id for one in samples)
    groups = [{sample.group_id for sample in part} for part in parts]
    assert sum(map(len, groups)) == len(sizes), "a group is divided"
    assert len(parts) == max(1, min(count, len(sizes) // GROUPS_AT_LEAST))
    assert len(parts) == 1 or all(len(part) >= GROUPS_AT_LEAST for part in groups)


def test_one_mini_batch_is_the_batch_in_its_own_order():
    samples = _groups([(2, 3)] * 5)
    assert cut(samples, 1) == [samples]


def test_mini_batches_of_like_groups_hold_as_many_tokens():
    tokens = [sum(sum(sample.loss_mask) for sample in part) for part in cut(_groups([(4, 10)] * 16), 4)]
    assert tokens == [160] * 4


def test_a_long_group_makes_room_for_itself():
    parts = cut(_groups([(1, 5)] * 9 + [(1, 60)]), 2)
    longest = next(part for part in parts if any(sample.group_id == "g9" for sample in part))
    assert len(longest) < 10 - len(longest)


def test_groups_that_share_a_prefix_stay_together():
    deep = [_sample(f"d{g}", f"d{g}", [9, 9, 9, 9, 9, 9, g, 1], 1) for g in range(4)]
    other = [_sample(f"o{g}", f"o{g}", [3, 3, 3, 3, 3, 3, g, 1], 1) for g in range(4)]
    mixed = [sample for pair in zip(deep, other, strict=True) for sample in pair]
    assert [{sample.sample_id[0] for sample in part} for part in cut(mixed, 2)] == [{"o"}, {"d"}]


def test_the_order_of_a_batch_does_not_decide_which_groups_go_together():
    samples = _groups([(3, 4)] * 12)
    again = random.Random(5).sample(samples, len(samples))
    ours, theirs = ([{sample.group_id for sample in part} for part in cut(one, 4)] for one in (samples, again))
    assert ours == theirs


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_an_epoch_visits_every_mini_batch_once_in_an_order_of_its_own(epochs):
    order = visits(6, epochs, seed=1, step=9)
    rounds = [tuple(order[start : start + 6]) for start in range(0, len(order), 6)]
    assert [sorted(one) for one in rounds] == [list(range(6))] * epochs
    assert len(set(rounds)) == epochs


def test_seed_and_step_decide_the_order():
    assert visits(8, 2, seed=3, step=4) == visits(8, 2, seed=3, step=4)
    assert len({tuple(visits(8, 2, seed=seed, step=step)) for seed in (3, 4) for step in (4, 5)}) == 4
