"""Bounds that hold at all times, by hand and by chance; and the decision that is made of them."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.versions.sequential import Decision, bounds, compare, counted, is_below


def test_the_lower_bound_is_where_the_money_of_the_bets_has_grown_enough_by_hand():
    # 20 ones: the mean over the bets b of (1 + b (1 - m)) ** 20 is 20 at the bound.
    found = bounds({1.0: 20}, 0.05)
    money = sum((1 + bet * (1 - found.low)) ** 20 for bet in (0.8, 0.4, 0.2, 0.1, 0.05)) / 5
    assert money == pytest.approx(20, rel=1e-6)
    assert (found.mean, found.high, found.count) == (1.0, 1.0, 20)


def test_of_nothing_everything_is_possible_and_what_is_off_the_scale_is_refused():
    assert (bounds({}, 0.05).low, bounds({}, 0.05).high) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"is 1\.5; scale it to 0 to 1"):
        bounds({1.5: 1}, 0.05)
    assert counted([-3, 0, 5, 10, 12], (0, 10)) == {0.0: 2, 0.5: 1, 1.0: 2}


@given(st.dictionaries(st.floats(0, 1), st.integers(1, 200), min_size=1, max_size=6), st.floats(0.01, 0.2))
def test_bounds_hold_the_mean_and_narrow_with_more_of_the_same(counts, error):
    few, many = bounds(counts, error), bounds({value: 4 * count for value, count in counts.items()}, error)
    assert 0 <= few.low <= few.mean + 1e-9
    assert few.mean - 1e-9 <= few.high <= 1
    assert many.low >= few.low - 1e-9
    assert many.high <= few.high + 1e-9


@pytest.mark.long
def test_whoever_looks_all_the_time_is_misled_as_seldom_as_was_said():
    """200 runs of 400 rollouts, looked at every 10: the true mean is outside of a side in at most 5 % or so."""
    generator, missed = random.Random(11), 0
    for _ in range(200):
        seen: Counter[float] = Counter()
        for number in range(1, 401):
            seen[float(generator.random() < 0.7)] += 1
            if number % 10 == 0 and bounds(seen, 0.05).low > 0.7:
                missed += 1
                break
    assert missed <= 0.05 * 200 + 2 * math.sqrt(200 * 0.05 * 0.95)


def test_what_is_below_by_a_margin_and_what_is_not():
    worse, same = Counter({1.0: 30, 0.0: 70}), Counter({1.0: 70, 0.0: 30})
    assert is_below(worse, same, share=0.5, error=0.05)
    assert is_below(worse, same, share=0.5, error=0.05, by=0.1)
    assert not is_below(worse, same, share=0.5, error=0.05, by=0.35)
    assert not is_below(same, worse, share=0.5, error=0.05)
    assert not is_below(same, same, share=0.5, error=0.05)
    assert not is_below(Counter(), same, share=0.5, error=0.05)


@given(
    *(st.dictionaries(st.floats(0, 1), st.integers(1, 200), min_size=1, max_size=4) for _ in "ab"),
    st.floats(0.01, 0.99),
    st.floats(-1, 1),
)
def test_a_margin_of_any_size_is_decided(one, other, share, by):
    """A bet never loses more than there is, however far the means that are to be excluded lie off the scale."""
    below = is_below(one, other, share=share, error=0.05, by=by)
    means = [sum(value * count for value, count in counts.items()) / sum(counts.values()) for counts in (one, other)]
    assert not below or means[0] < means[1] - by


def test_a_large_margin_by_hand():
    """0 of 4000 and all of 4000: that is more by 0.5 and by 0.9, and nothing is more than by 1."""
    never, always = Counter({0.0: 4000}), Counter({1.0: 4000})
    for share in (0.1, 0.5, 0.9):
        assert is_below(never, always, share=share, error=0.01, by=0.5)
        assert is_below(never, always, share=share, error=0.01, by=0.9)
        assert not is_below(never, always, share=share, error=0.01, by=1.0)


def decide(candidate: tuple[int, int], live: tuple[int, int], **more) -> Decision:
    new, old = ({1.0: right, 0.0: wrong} for right, wrong in (candidate, live))
    settings = {"share": 0.1, "error": 0.05, "tolerance": 0.03, "most": 500, **more}
    return compare(new, old, **settings).decision


def test_decisions():
    assert decide((100, 200), (1800, 900)) is Decision.REFUSED
    assert decide((280, 20), (1800, 900)) is Decision.PROMOTED
    assert decide((60, 40), (540, 360)) is Decision.GOING_ON
    assert decide((60, 40), (540, 360), most=100) is Decision.STOPPED
    assert decide((0, 0), (0, 0)) is Decision.GOING_ON
    assert decide((3000, 2000), (27_000, 18_000)) is Decision.PROMOTED, "as good, within the tolerance"


def test_a_share_that_was_expected_otherwise_costs_rollouts_and_is_still_right():
    assert decide((100, 200), (300, 150), share=0.02) is Decision.REFUSED
    assert decide((100, 200), (100, 200), share=0.5) is Decision.GOING_ON
