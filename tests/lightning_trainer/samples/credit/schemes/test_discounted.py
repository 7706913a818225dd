import math

import pytest

from lightning_trainer.errors import CreditAssignmentError
from lightning_trainer.samples.credit.schemes.discounted import DiscountedReturn


@pytest.fixture
def tree(make_transition, make_trajectory):
    """Make a trajectory from ``name=(reward, parent)``."""

    def tree(reward=None, **steps):
        return make_trajectory(
            *(make_transition(name, reward=step, parent_id=parent) for name, (step, parent) in steps.items()),
            reward=reward,
        )

    return tree


def _values(gamma, *trajectories):
    return [[credit.value for credit in credits_T] for credits_T in DiscountedReturn(gamma)(trajectories)]


def test_a_chain_by_hand(tree):
    """G_3 = 4 + 8 = 12, G_2 = 2 + 0.5 * 12 = 8, G_1 = 1 + 0.5 * 8 = 5."""
    assert _values(0.5, tree(8.0, a=(1.0, None), b=(2.0, "a"), c=(4.0, "b"))) == [[5.0, 8.0, 12.0]]


def test_an_outcome_alone_is_discounted_by_the_calls_that_were_still_to_come(tree):
    assert _values(0.9, tree(1.0, a=(None, None), b=(None, "a"), c=(None, "b"))) == [
        [pytest.approx(0.81), pytest.approx(0.9), 1.0]
    ]


def test_steps_alone_need_no_outcome(tree):
    assert _values(1.0, tree(None, a=(1.0, None), b=(0.0, "a"), c=(2.0, "b"))) == [[3.0, 2.0, 2.0]]


def test_a_fork_sees_the_mean_of_its_branches_by_hand(tree):
    """Leaves: c = 3 + 10, d = 1 + 10. b = 2 + 0.5 * 13 = 8.5. a = 1 + 0.5 * (8.5 + 11) / 2 = 5.875."""
    forked = tree(10.0, a=(1.0, None), b=(2.0, "a"), c=(3.0, "b"), d=(1.0, "a"))
    assert _values(0.5, forked) == [[5.875, 8.5, 13.0, 11.0]]


def test_a_branch_does_not_see_what_another_branch_earned(tree):
    def returns(earned):
        return _values(0.5, tree(1.0, a=(0.0, None), b=(0.0, "a"), c=(earned, "a"), d=(0.0, "c"), e=(0.0, None)))[0]

    before, after = returns(0.0), returns(100.0)
    assert [name for name, x, y in zip("abcde", before, after, strict=True) if x != y] == ["a", "c"]


def test_a_step_that_lacks_the_reward_that_others_have_is_missing_with_all_that_leads_to_it(tree):
    assert _values(1.0, tree(1.0, a=(1.0, None), b=(None, "a"), c=(1.0, "b"), d=(2.0, None))) == [
        [None, None, 2.0, 3.0]
    ]


def test_what_one_attempt_of_the_group_was_given_is_expected_of_all(tree):
    assert _values(1.0, tree(1.0, a=(1.0, None)), tree(None, a=(1.0, None)), tree(1.0, a=(None, None))) == [
        [2.0],
        [None],
        [None],
    ]


def test_without_any_reward_everything_is_missing(tree):
    assert _values(1.0, tree(None, a=(None, None), b=(None, "a"))) == [[None, None]]


def test_each_transition_is_a_row_of_its_own(tree):
    (credits_T,) = DiscountedReturn(1.0)([tree(1.0, a=(None, None), b=(None, "a"))])
    assert [credit.row_id for credit in credits_T] == ["a", "b"]


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan])
def test_a_gamma_outside_its_range_is_refused(gamma):
    with pytest.raises(CreditAssignmentError, match=r"gamma must be in \[0, 1\]"):
        DiscountedReturn(gamma)


def test_a_reward_that_is_not_a_number_is_refused(tree):
    with pytest.raises(CreditAssignmentError, match="transition a: the reward is nan"):
        _values(1.0, tree(None, a=(math.nan, None)))


@pytest.mark.long
def test_a_chain_of_100_000_needs_no_recursion(make_transition, make_trajectory):
    chain = [make_transition(str(t), parent_id=str(t - 1) if t else None) for t in range(100_000)]
    (credits_T,) = DiscountedReturn(1.0)([make_trajectory(*chain, reward=1.0)])
    assert {credit.value for credit in credits_T} == {1.0}
