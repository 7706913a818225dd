"""A preset is what its paper says, what is given beside it counts, and what cannot be is refused in a sentence."""

import math
import re

import pytest
from pydantic import ValidationError

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.algorithms.presets import PRESETS


def _policy(**sections) -> PolicyConfig:
    return PolicyConfig.model_validate({"name": "p", "agents": ["*"], "model": "random:tiny", **sections})


@pytest.mark.parametrize("name", PRESETS)
def test_a_name_alone_is_the_preset(name):
    assert _policy(algorithm=name).algorithm == AlgorithmConfig(preset=name)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_nothing_that_is_no_setting(name):
    assert set(PRESETS[name]) <= set(AlgorithmConfig.model_fields)


def test_what_is_given_beside_a_preset_counts():
    algorithm = _policy(algorithm={"preset": "gspo", "clip_ratio_high": 0.01}).algorithm
    assert (algorithm.policy_loss, algorithm.clip_ratio_low, algorithm.clip_ratio_high) == ("gspo", 3e-4, 0.01)
    shaped = AlgorithmConfig.model_validate({"preset": "ppo", "critic": {"lr": 1e-4}}).critic
    assert (shaped.lr, shaped.cliprange_value) == (1e-4, 0.2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("grpo", {"normalize_by_std": True, "kl_loss_coef": 0.04, "kl_loss_type": "k3", "clip_ratio_c": math.inf}),
        ("grpo", {"loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}),
        ("dr_grpo", {"normalize_by_std": False, "loss_agg_mode": "seq-mean-token-sum-norm", "kl_loss_coef": 0.0}),
        ("dapo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "loss_agg_mode": "token-mean", "kl_loss_coef": 0.0}),
        ("dapo", {"dynamic_sampling": True, "drop_zero_variance_groups": True}),
        ("gspo", {"policy_loss": "gspo", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "kl_loss_coef": 0.0}),
        ("cispo", {"policy_loss": "cispo", "clip_ratio_low": 1.0, "loss_agg_mode": "token-mean", "kl_loss_coef": 0.0}),
        ("rloo", {"advantage": "rloo", "policy_loss": "gpg", "loss_agg_mode": "seq-mean-token-sum"}),
        ("rloo", {"kl_reward_coef": 0.03, "kl_reward_type": "k1"}),
        ("reinforce_plus_plus", {"advantage": "reinforce_plus_plus", "kl_reward_type": "k1", "gamma": 1.0}),
        ("ppo", {"advantage": "gae", "gamma": 1.0, "lam": 0.95, "kl_reward_coef": 0.02}),
        ("starpo_s", {"keep_most_uncertain": 0.25, "kl_loss_coef": 0.0, "kl_reward_coef": 0.0, "advantage": "gae"}),
        ("starpo_s", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}),
    ],
)
def test_a_preset_is_what_its_paper_says(name, said):
    found = AlgorithmConfig(preset=name).model_dump()
    assert {setting: found[setting] for setting in said} == said


@pytest.mark.parametrize(
    ("name", "mini_batches"),
    [("grpo", 1), ("dr_grpo", 8), ("dapo", 16), ("gspo", 4), ("cispo", 16), ("rloo", 2), ("ppo", 8), ("starpo_s", 1)],
)
def test_a_preset_updates_as_often_as_its_paper(name, mini_batches):
    algorithm = AlgorithmConfig(preset=name)
    assert (algorithm.mini_batches, algorithm.ppo_epochs) == (mini_batches, 1)
    assert algorithm.old_logprobs == ("trainer" if name == "gspo" else "behaviour")


def test_the_parts_of_dapo_can_be_had_alone():
    assert AlgorithmConfig(clip_ratio_high=0.28).dynamic_sampling is False
    alone = AlgorithmConfig(dynamic_sampling=True)
    assert (alone.overlong, alone.loss_agg_mode) == (None, "token-mean")
    shaped = AlgorithmConfig.model_validate({"overlong": {"max_response_tokens": 100}})
    assert shaped.overlong is not None
    assert shaped.dynamic_sampling is False


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ("gspoo", "there is no algorithm 'gspoo'; there are grpo, dr_grpo"),
        ({"preset": ["dapo"]}, "there is no algorithm ['dapo']; there are grpo, dr_grpo"),
        ({"policy_loss": "dro"}, "needs dro_beta"),
        ({"preset": "dapo", "overlong": {"buffer_tokens": 4096}}, "more than the longest response of 2048 tokens"),
        ({"overlong": {"max_response_tokens": 8, "buffer_tokens": 9}}, "overlong.buffer_tokens = 9 is more than"),
        ({"preset": "dpo", "mini_batches": 2}, "a step is one update; take fewer pairs a step instead"),
        ({"preset": "dpo", "ppo_epochs": 2}, "a step is one update; take fewer pairs a step instead"),
        ({"policy_loss": "geo_mean", "loss_agg_mode": "token-mean"}, "'geo_mean' always averages by seq-mean"),
        ({"policy_loss": "sapo", "loss_agg_mode": "token-mean"}, "'sapo' always averages by seq-mean-token-mean"),
        ({"advantage": "credit", "kl_reward_coef": 0.1}, "with advantage = 'credit' there are only advantages"),
        ({"advantage": "credit", "overlong": {}}, "with advantage = 'credit' there are only advantages; leave one"),
        ({"preset": "dapo", "advantage": "credit"}, '(algorithm.overlong = "none" does, where the preset has it)'),
        ({"preset": "cispo", "advantage": "credit"}, "overlong shaping is taken off rewards"),
        ({"policy_loss": "bypass_mode", "old_logprobs": "trainer"}, "against the engine's logprobs"),
        ({"policy_loss": "bypass_mode", "rollout_is": "token"}, "would have no effect; set bypass_loss = 'reinforce'"),
        ({"rollout_rs": "token_k1"}, "rollout_rs = 'token_k1' needs rollout_rs_threshold"),
        ({"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": 0.2}, "seq_mean_k1 is kept from 1/t to t; give 1 or"),
        ({"rollout_rs": "token_k1,token_k1", "rollout_rs_threshold": "2,2"}, "names token_k1 more than once"),
        ({"rollout_rs": "token_k9", "rollout_rs_threshold": 2.0}, "rollout_rs = 'token_k9' is unknown; there are"),
        ({"rollout_rs": "token_k3", "rollout_rs_threshold": "0.5_2"}, "token_k3 is never negative"),
        ({"rollout_rs": "token_k1,seq_mean_k3", "rollout_rs_threshold": "1,2,3"}, "holds 3 thresholds for 2 names"),
        ({"rollout_is_threshold": "5_2"}, "rollout_is_threshold = '5_2' is not a threshold"),
        ({"rollout_is_threshold": -1.0}, "rollout_is_threshold = -1.0 is not a threshold"),
        ({"keep_most_uncertain": 0.0}, "greater than 0"),
        ({"kl_loss_coef": math.inf}, "finite number"),
        ({"policy_loss": "clip_cov", "clip_cov_ub": math.nan}, "finite number"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(algorithm, said):
    with pytest.raises(ValidationError, match=re.escape(said)):
        _policy(algorithm=algorithm)


def test_the_shaping_of_a_preset_can_be_left_out():
    policy = _policy(credit={"scheme": "gigpo"}, algorithm={"preset": "dapo", "overlong": "none"})
    assert (policy.algorithm.overlong, policy.algorithm.dynamic_sampling) == (None, True)
    policy = _policy(algorithm={"preset": "dapo", "advantage": "credit", "overlong": "none"})
    assert (policy.algorithm.overlong, policy.estimator) == (None, "credit")
    values = _policy(credit={"scheme": "gae_turns"}, algorithm={"preset": "dapo", "advantage": "credit"})
    assert values.algorithm.overlong is not None, "its advantages are made from the rewards after the shaping"


@pytest.mark.parametrize("algorithm", ["rloo", {"overlong": {}}])
def test_nothing_is_taken_off_the_rewards_of_a_scheme_that_gives_advantages(algorithm):
    with pytest.raises(ValidationError, match="credit scheme 'gigpo' gives"):
        _policy(credit={"scheme": "gigpo"}, algorithm=algorithm)


def test_a_scheme_that_gives_advantages_takes_the_place_of_a_presets_estimator():
    policy = _policy(credit={"scheme": "gigpo"}, algorithm="gspo")
    assert (policy.estimator, policy.algorithm.policy_loss) == ("credit", "gspo")
    with pytest.raises(ValidationError, match=r"algorithm\.advantage = 'rloo' would take off another"):
        _policy(credit={"scheme": "gigpo"}, algorithm={"preset": "gspo", "advantage": "rloo"})


def test_models_and_passes_are_asked_for_only_where_something_needs_them():
    assert not AlgorithmConfig().needs_reference
    assert AlgorithmConfig(kl_loss_coef=0.1).needs_reference
    assert AlgorithmConfig(kl_reward_coef=0.1).needs_reference
    assert not AlgorithmConfig().recomputes_old_logprobs
    assert AlgorithmConfig(rollout_is="token").recomputes_old_logprobs
    inside = AlgorithmConfig(policy_loss="bypass_mode", bypass_loss="reinforce", rollout_is="token")
    assert not inside.recomputes_old_logprobs
