"""Stale weights are found where agreement alone cannot find them, and rounding is not taken for staleness."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_trainer.serving.host.probe.probe_comparison import Scored, measure_movement

N = 67
"""The probe's scored tokens (``training.probe``)."""


def scored(trainer, noise):
    return Scored([trainer], [[t + n for t, n in zip(trainer, noise, strict=True)]])


def normal(random_, scale):
    return [random_.gauss(0, scale) for _ in range(N)]


def moved_by(random_, before, scale):
    return [b + m for b, m in zip(before, normal(random_, scale), strict=True)]


def test_an_engine_that_follows_has_slope_one():
    random_ = random.Random(0)
    start = normal(random_, 3)
    after = moved_by(random_, start, 0.2)
    found = measure_movement(scored(start, normal(random_, 0.03)), scored(after, normal(random_, 0.03)))
    assert found is not None
    assert found.decisive
    assert not found.stale
    assert abs(found.slope - 1) < 0.05


def test_an_engine_that_stands_still_to_the_last_bit_is_stale_however_small_the_step():
    random_ = random.Random(1)
    start = normal(random_, 3)
    before = scored(start, normal(random_, 0.03))
    found = measure_movement(before, Scored([moved_by(random_, start, 1e-4)], before.engine))
    assert found is not None
    assert found.stale
    assert found.slope == 0


def test_half_of_the_layers_left_behind_is_found_when_the_step_is_clear():
    random_ = random.Random(2)
    start = normal(random_, 3)
    step = normal(random_, 0.3)
    before = scored(start, normal(random_, 0.03))
    engine = [e + 0.2 * d + random_.gauss(0, 0.03) for e, d in zip(before.engine[0], step, strict=True)]
    found = measure_movement(before, Scored([[s + d for s, d in zip(start, step, strict=True)]], [engine]))
    assert found is not None
    assert found.stale


def test_a_trainer_that_did_not_move_proves_nothing():
    before = scored([-1.0, -2.0], [0.1, 0.0])
    assert measure_movement(before, before) is None


def test_an_unchanged_engine_is_no_evidence_when_the_trainer_hardly_moved():
    before = scored([-1.0, -2.0], [0.0, 0.0])
    found = measure_movement(before, Scored([[-1.0 - 1e-7, -2.0]], before.engine))
    assert found is not None
    assert not found.decisive


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-6, 1.0), st.floats(1e-6, 0.2), st.floats(0, 0.2))
def test_loaded_weights_are_never_called_stale(seed, step, engine_noise, trainer_noise):
    random_ = random.Random(seed)
    truth = normal(random_, 3)
    after = moved_by(random_, truth, step)

    def seen(true_scores):
        trainer = [t + n for t, n in zip(true_scores, normal(random_, trainer_noise), strict=True)]
        return Scored([trainer], [[t + n for t, n in zip(true_scores, normal(random_, engine_noise), strict=True)]])

    found = measure_movement(seen(truth), seen(after))
    assert found is None or not found.stale


@pytest.mark.parametrize("seed", range(200))
def test_stale_weights_are_found_on_an_engine_whose_numbers_differ_from_run_to_run(seed):
    random_ = random.Random(seed)
    start = normal(random_, 3)
    after = moved_by(random_, start, 0.15)
    stale = [t + random_.gauss(0, 0.03) for t in start]
    found = measure_movement(scored(start, normal(random_, 0.03)), Scored([after], [stale]))
    assert found is not None
    assert found.stale
