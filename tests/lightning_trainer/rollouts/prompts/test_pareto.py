"""Which candidate a search goes on from: GEPA's selection (arXiv 2507.19457, algorithm 2)."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.rollouts.prompts.pareto import drawn, frontier

_SCORES = st.integers(1, 6).flatmap(
    lambda tasks: st.lists(
        st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=tasks, max_size=tasks).map(
            lambda rewards: {f"task-{number}": reward for number, reward in enumerate(rewards)}
        ),
        min_size=1,
        max_size=6,
    )
)


def test_who_leads_only_where_another_leads_too_is_left_out():
    """The paper's example: 2 is best at task 1 alone, and 3 is as good there and best at task 2 as well."""
    one, two, three = {"1": 0.1, "2": 0.1, "3": 0.9}, {"1": 0.8, "2": 0.2, "3": 0.2}, {"1": 0.8, "2": 0.7, "3": 0.1}
    assert frontier([one, two, three]) == {0: 1, 2: 2}


def test_the_best_on_average_may_lead_nowhere():
    assert frontier([{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}, {"a": 0.9, "b": 0.9}]) == {0: 1, 1: 1}


@given(_SCORES)
def test_every_task_has_a_leader_on_the_frontier_and_nobody_leads_within_another(candidates):
    kept = frontier(candidates)
    leads = [
        {task for task in scores if scores[task] == max(other[task] for other in candidates)} for scores in candidates
    ]
    assert set.union(*(leads[index] for index in kept)) == set(candidates[0])
    assert all(count == len(leads[index]) > 0 for index, count in kept.items())
    assert not any(leads[one] < leads[other] for one in kept for other in range(len(candidates)))


def test_it_is_drawn_as_often_as_it_leads():
    candidates = [{"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.0, "d": 1.0}]
    chance = random.Random(0)
    found = Counter(drawn(candidates, chance) for _ in range(4000))
    assert found[0] == pytest.approx(3000, abs=120)


@pytest.mark.parametrize("candidates", [[], [{}], [{"a": 1.0}, {"b": 1.0}]])
def test_candidates_of_different_tasks_are_not_compared(candidates):
    with pytest.raises(ValueError, match="the same tasks"):
        frontier(candidates)
