"""Weights and rejections between engine and trainer, by hand."""

import math

import pytest

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig

pytestmark = pytest.mark.verl


@pytest.fixture
def correction(sample):
    from lightning_trainer.training.update.losses import correct

    def of(**settings):
        one = sample("a", [1, 2, 3, 4], [0, 1, 0, 1], group="g", credit=1.0, logprobs=[0.0, -1.0, 0.0, -2.0])
        other = sample("b", [1, 2], [0, 1], group="g", credit=0.0, logprobs=[0.0, -1.0])
        old = {"a": [0.0, -0.5, 0.0, -2.5], "b": [0.0, -1.0]}
        return correct([one, other], old, AlgorithmConfig(**settings))

    return of


def test_a_tokens_weight_is_its_ratio_up_to_the_threshold(correction):
    weights = correction(rollout_is="token", rollout_is_threshold=1.5).weights
    assert weights["a"] == pytest.approx([0.0, 1.5, 0.0, math.exp(-0.5)])  # exp(0.5) = 1.65 is truncated
    assert weights["b"] == pytest.approx([0.0, 1.0])


def test_a_sequences_weight_is_the_product(correction):
    assert correction(rollout_is="sequence").weights["a"] == pytest.approx([0.0, 1.0, 0.0, 1.0])


def test_what_is_out_of_bounds_is_left_out(correction):
    """The bounds are of engine / trainer: exp(-1 + 0.5) = 0.61 is out, exp(-2 + 2.5) = 1.65 is not."""
    found = correction(rollout_rs="token_k1", rollout_rs_threshold="0.9_2.0")
    assert found.weights is None
    assert found.masks == {"a": [0, 0, 0, 1], "b": [0, 1]}
    assert found.metrics["rollout_corr/kl"] == pytest.approx(0.0, abs=1e-6)


def test_icepop_gives_what_is_out_of_bounds_no_weight(correction):
    found = correction(rollout_is="token", rollout_is_threshold="0.9_2.0").weights
    assert found["a"] == pytest.approx([0.0, math.exp(0.5), 0.0, 0.0])
