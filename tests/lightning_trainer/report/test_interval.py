"""Wilson's interval against published values, and at the ends where simpler intervals fail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.report import wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_it_gives_newcombes_published_values(successes, n, low, high):
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_all_of_them_is_not_certainty():
    low, high = wilson_interval(96, 96)
    assert high == 1.0
    assert low == pytest.approx(0.9615, abs=1e-4)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_it_holds_the_share_and_mirrors(counts):
    successes, n = counts
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    mirrored = wilson_interval(n - successes, n)
    assert mirrored == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (3, 2), (-1, 4)])
def test_impossible_counts_are_refused(successes, n):
    with pytest.raises(ValueError, match=f"{successes} successes of {n}"):
        wilson_interval(successes, n)
