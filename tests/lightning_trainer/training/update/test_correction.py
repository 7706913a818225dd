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


@pytest.mark.parametrize("estimator", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_weights_scale_the_variances_of_a_token_baseline_as_in_verl(sample, estimator):
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from lightning_trainer.training.update.estimation.advantages import estimate

    measured = {
        "old_log_probs": {"a": [9.0, -0.5, -1.0], "b": [9.0, -2.0, -0.1]},
        "sum_pi_squared": {"a": [9.0, 0.5, 0.3], "b": [9.0, 0.2, 0.9]},
        "rollout_is_weights": {"a": [9.0, 2.0, 1.5], "b": [9.0, 0.1, 0.7]},
    }
    samples = [sample(name, [1, 2, 3], [0, 1, 1], group="g", credit=reward) for name, reward in (("a", 1.0), ("b", 0))]
    rows = {name: torch.tensor([of["a"][1:], of["b"][1:]], dtype=torch.float64) for name, of in measured.items()}
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    verls, _ = get_adv_estimator_fn(estimator)(
        token_level_rewards=rewards, response_mask=torch.ones(2, 2), index=np.array(["g", "g"]), **rows
    )
    found = estimate(samples, estimator, AlgorithmConfig(), measured=measured).advantages
    assert [found["a"][1:], found["b"][1:]] == [pytest.approx(row) for row in verls.tolist()]
    # Of the first token: 1 - 2 exp(-0.5) + 0.5 and 1 - 2 exp(-2) + 0.2, times the squares of 2 and 0.1
    w_a, w_b = (1.5 - 2 * math.exp(-0.5)) * 4, (1.2 - 2 * math.exp(-2)) * 0.01
    assert found["a"][1] == pytest.approx(1 - w_a / (w_a + w_b), abs=1e-6)
