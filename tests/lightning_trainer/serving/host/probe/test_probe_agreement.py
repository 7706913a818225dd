"""Two scorings of one probe, compared token by token."""

import math

from lightning_trainer.serving.host.probe.probe_comparison import compare
from lightning_trainer.serving.publication import Tolerance


def test_the_largest_and_the_mean_difference_are_over_all_tokens():
    agreement = compare([[-1.0, -2.0], [-3.0]], [[-1.5, -2.0], [-3.1]])
    assert agreement.max_abs == 0.5
    assert math.isclose(agreement.mean_abs, 0.2)


def test_both_bounds_must_hold():
    agreement = compare([[-1.0, -2.0]], [[-1.4, -2.0]])
    assert agreement.refusal(Tolerance(max_abs=0.5, mean_abs=0.3)) is None
    assert "0.4 nats at most" in (agreement.refusal(Tolerance(max_abs=0.3, mean_abs=0.3)) or "")
    assert "0.2 on average" in (agreement.refusal(Tolerance(max_abs=0.5, mean_abs=0.1)) or "")


def test_nan_agrees_with_nothing():
    for bad in (math.nan, -math.inf):
        assert compare([[-1.0, bad]], [[-1.0, bad]]).refusal(Tolerance(max_abs=1e9, mean_abs=1e9)) is not None
