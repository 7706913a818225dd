"""What supervised fine-tuning and DPO leave without effect, refused before a run starts.

Both are the loss ``-A log p`` with a factor ``A`` that the objective gives a token, so nothing that belongs to rewards,
ratios or estimators has a place next to them.
"""

from typing import TYPE_CHECKING

from lightning_trainer.config.algorithms.presets import PRESETS

if TYPE_CHECKING:
    from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig

_OF_REWARDS = (
    "advantage",
    "normalize_by_std",
    "gamma",
    "lam",
    "clip_ratio_low",
    "clip_ratio_high",
    "clip_ratio_c",
    "kl_reward_coef",
    "overlong",
    "old_logprobs",
    "rollout_is",
    "rollout_rs",
    "bypass_loss",
    "critic",
)
_NOT_IN_A_PAIR = ("entropy_coeff", "kl_loss_coef", "drop_zero_variance_groups")
"""A pair's loss is not a mean over tokens, and a group without a spread has no pair."""


def refuse_beside_imitation(algorithm: "AlgorithmConfig") -> None:
    """Raise ``ValueError`` when a setting is given that the objective does not read, or its preset is not named."""
    objective = algorithm.objective
    preset = PRESETS[objective]
    if algorithm.policy_loss != preset["policy_loss"]:
        raise ValueError(
            f"objective = {objective!r} has a loss of its own, which policy_loss = {algorithm.policy_loss!r} would "
            f"replace; write preset = {objective!r} and leave policy_loss out"
        )
    without_effect = (*_OF_REWARDS, *_NOT_IN_A_PAIR) if objective == "dpo" else _OF_REWARDS
    if given := [name for name in without_effect if name in algorithm.model_fields_set]:
        raise ValueError(
            f"{given[0]} = {getattr(algorithm, given[0])!r} has no effect with objective = {objective!r}, which "
            "learns from what is shown and not from rewards; leave it out"
        )
    if objective == "dpo" and (algorithm.mini_batches > 1 or algorithm.ppo_epochs > 1):
        raise ValueError(
            f"objective = 'dpo' with mini_batches = {algorithm.mini_batches} and ppo_epochs = {algorithm.ppo_epochs}: "
            "a pair's gradient is taken from what is measured before the step, so a step is one update; take fewer "
            "pairs a step instead"
        )
    if objective == "dpo" and algorithm.loss_agg_mode != preset["loss_agg_mode"]:
        raise ValueError(
            f"objective = 'dpo' is a mean over pairs, so loss_agg_mode = {algorithm.loss_agg_mode!r} would have no "
            "effect; leave it out, or set dpo.length_normalized"
        )
