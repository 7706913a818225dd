"""Paired before and after: only changed tasks count as evidence."""

from math import sqrt

import pytest

from lightning_trainer.report import mean_difference, paired_difference


def outcomes(both: int, gained: int, lost: int, neither: int) -> tuple[list[bool], list[bool]]:
    before = [True] * both + [False] * gained + [True] * lost + [False] * neither
    after = [True] * both + [True] * gained + [False] * lost + [False] * neither
    return before, after


def test_by_hand():
    change = paired_difference(*outcomes(both=2, gained=6, lost=1, neither=1))
    assert (change.n, change.gained, change.lost) == (10, 6, 1)
    assert change.difference == pytest.approx(0.5)
    # Exact McNemar: two-sided binomial of 1 or fewer of 7 changes: 2 * (1 + 7) / 128.
    assert change.p_value == pytest.approx(0.125)
    # Bonett and Price: 7/12 and 2/12, center 5/12, half width 1.96 * sqrt((9/12 - 25/144) / 12).
    half = 1.959963984540054 * sqrt((9 / 12 - 25 / 144) / 12)
    assert change.interval == pytest.approx((5 / 12 - half, 5 / 12 + half))


def test_no_change_is_no_evidence():
    change = paired_difference(*outcomes(both=40, gained=0, lost=0, neither=56))
    assert change.difference == 0
    assert change.p_value == 1.0
    assert change.interval[0] < 0 < change.interval[1]


def test_a_large_gain_is_evidence():
    change = paired_difference(*outcomes(both=35, gained=61, lost=0, neither=0))
    assert change.p_value == pytest.approx(2 / 2**61)
    assert change.interval[0] > 0.5


def test_it_is_antisymmetric():
    there, back = (paired_difference(*outcomes(3, a, b, 5)) for a, b in ((4, 2), (2, 4)))
    assert there.difference == -back.difference
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]))
    assert there.p_value == back.p_value


@pytest.mark.parametrize(("before", "after"), [([], []), ([True], [True, False])])
def test_other_tasks_cannot_be_compared(before, after):
    with pytest.raises(ValueError, match="same tasks"):
        paired_difference(before, after)


@pytest.mark.parametrize(("n", "t"), [(4, 3.182), (6, 2.571), (10, 2.262), (30, 2.045), (1000, 1.962)])
def test_the_interval_of_a_mean_difference_is_students(n, t):
    before, after = [0.0] * n, [0.5] * (n - 1) + [1.5]
    change = mean_difference(before, after)
    assert change is not None
    # All but one of the differences are 0.5, the last is 1 more: mean 0.5 + 1 / n, variance 1 / n.
    assert (change.n, change.difference) == (n, pytest.approx(0.5 + 1 / n))
    half = t / n
    assert change.interval == pytest.approx((0.5 + 1 / n - half, 0.5 + 1 / n + half), abs=0.004 / n)


@pytest.mark.parametrize(("before", "after"), [([0.1] * 3, [0.2, 0.4, 0.9]), ([0.1, 0.3] * 4, [0.2, 0.4] * 4)])
def test_few_tasks_and_differences_that_are_all_the_same_have_no_interval(before, after):
    assert mean_difference(before, after) is None
