"""``[policy.algorithm]``: what is optimized. ``algorithm = "gspo"`` is a preset; a section may name one and change it.

Names and meanings are verl's wherever verl has an equivalent, so that its papers, scripts and metrics are comparable.
"""

from typing import Any, Literal, Self, TypeAlias

from pydantic import Field, FiniteFloat, field_validator, model_validator

from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.algorithms.presets import PRESETS, with_preset
from lightning_trainer.config.algorithms.thresholds import rejection_thresholds, weight_threshold
from lightning_trainer.config.policies import estimators
from lightning_trainer.config.sections import Section

Objective: TypeAlias = Literal["rl", "sft", "dpo"]

KlEstimator: TypeAlias = Literal["k1", "k2", "k3", "abs", "low_var_kl", "k1+", "k3+"]
"""Schulman, Approximating KL Divergence (2020); ``low_var_kl`` is k3. ``+``: the value with k2's gradient."""

LossAggregation: TypeAlias = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]

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
"""Without effect for ``dpo`` too: a pair's loss is not a mean over tokens, and a group without a spread has no pair."""


class OverlongConfig(Section):
    """``overlong``: a soft penalty on long responses (DAPO, arXiv 2503.14476, equation 13)."""

    max_response_tokens: int | None = Field(default=None, ge=2)
    """Length with the full penalty; set it to the ``max_tokens`` of your calls. Default: ``max_sample_tokens``."""
    buffer_tokens: int | None = Field(default=None, ge=1)
    """The penalty grows from 0 over this many last tokens. Default: a fifth of ``max_response_tokens``."""
    penalty: float = Field(default=1.0, gt=0)
    """The full penalty, taken off the credit, in reward units."""

    @model_validator(mode="after")
    def _starts_within(self) -> Self:
        if self.max_response_tokens is not None:
            self.longest(self.max_response_tokens)
        return self

    def longest(self, max_sample_tokens: int) -> int:
        """Return the length with the full penalty.

        Raises:
            ValueError: the penalty would begin below a length of 0, and every response would be punished.
        """
        longest = self.max_response_tokens or max_sample_tokens
        if self.buffer_tokens is not None and self.buffer_tokens > longest:
            raise ValueError(
                f"overlong.buffer_tokens = {self.buffer_tokens} is more than the longest response of {longest} tokens, "
                "so the shortest would be punished too; make it smaller, or set overlong.max_response_tokens"
            )
        return longest


class CriticConfig(Section):
    """``critic``: the value model, for ``advantage = "gae"`` and the ``gae_*`` credit schemes."""

    lr: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    cliprange_value: float = Field(default=0.5, gt=0)
    """How far a value may move from what it was before the step."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of first steps in which only the critic is trained."""


class SftConfig(Section):
    """``sft``: which attempts of live groups are imitated."""

    min_reward: float | None = Field(default=None, allow_inf_nan=False)
    """The best attempt of a group is imitated only if it earned at least this; None: whatever it earned."""


class DpoConfig(Section):
    """``dpo``: preference pairs (arXiv 2305.18290)."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is kept near the reference: the larger, the nearer it stays."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of the pairs that are assumed to be in the wrong order (Mitchell, A note on DPO with noisy preferences,
    2023, equation 3)."""
    length_normalized: bool = False
    """Take means over an answer's tokens instead of sums (Lambert et al., Tulu 3, arXiv 2411.15124, equation 6)."""


class AlgorithmConfig(Section):
    """``algorithm``: advantage, loss, regularization and filters; ``docs/training.md`` is the guide."""

    preset: str | None = None
    """An algorithm by its paper's name; settings given with it override the preset's."""
    objective: Objective = "rl"
    """What training uses: rewards, demonstrations (``sft``) or preference pairs (``dpo``). Set by the presets."""
    advantage: str = "grpo"
    """Name in verl's advantage-estimator registry (``estimators.py`` says what each needs); ``credit`` means none."""
    policy_loss: str = "vanilla"
    """Name in verl's policy-loss registry (``losses.py`` says what each reads)."""
    mini_batches: int = Field(default=1, ge=1)
    """Number of parts into which a step's groups are divided; each part is one optimizer step. A part has at least two
    groups, so a step with few groups has fewer parts."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Number of passes that a step makes over its batch."""
    loss_agg_mode: LossAggregation = "token-mean"
    loss_scale_factor: int | None = Field(default=None, ge=1)
    """Divisor of ``seq-mean-token-sum-norm``; default: ``max_sample_tokens``."""
    clip_ratio_low: float = Field(default=0.2, ge=0)
    clip_ratio_high: float = Field(default=0.28, ge=0)
    clip_ratio_c: float = Field(default=3.0, gt=1)
    """Dual clip: bound on the ratio if the advantage is negative; ``inf`` turns it off."""
    normalize_by_std: bool = True
    """Divide the group's advantages by its standard deviation (GRPO); False is Dr. GRPO."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per token, for ``gae`` and ``reinforce_plus_plus``."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """For ``gae``."""
    entropy_coeff: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the entropy bonus; with 0 it is not computed."""
    kl_loss_coef: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the divergence from the reference model in the loss. If this and ``kl_reward_coef`` are 0, no reference
    is loaded, except for ``dpo``."""
    kl_loss_type: KlEstimator = "k3"
    kl_reward_coef: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the divergence in the reward, subtracted at every token."""
    kl_reward_type: Literal["k1", "k2", "k3", "abs", "low_var_kl"] = "k1"
    reference_model: str | None = None
    """Written like ``model``; absent: the policy as it was when the stage (without stages, the run) began."""
    drop_zero_variance_groups: bool = True
    """A group whose rows all have the same credit carries no gradient; leaving it out saves its tokens."""
    dynamic_sampling: bool = False
    """Fill a step with further groups until ``groups_per_step`` of them have a spread (DAPO)."""
    max_sampling_rounds: int = Field(default=10, ge=1)
    """Dynamic sampling looks at no more than this many times ``groups_per_step`` groups per step."""
    keep_most_uncertain: float | None = Field(default=None, gt=0, le=1)
    """Share of a step's groups that is trained, those with the largest deviation of rewards (StarPO-S)."""
    deviation_floor: float | None = Field(default=None, gt=0, le=10)
    """A group is trained if the deviation of its rewards is at least this many times the moving average over earlier
    steps of its stage (RLPR, arXiv 2506.18254)."""
    deviation_decay: float = Field(default=0.9, ge=0, lt=1)
    """Decay of that average: how much of its earlier value a step keeps."""
    overlong: OverlongConfig | None = None
    """``"none"`` turns off the penalty of a preset that has one."""
    mask_truncated: bool = False
    """Leave out responses that ``max_tokens`` cut off (DAPO's overlong filtering, arXiv 2503.14476, section 3.4)."""
    tau_pos: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    tau_neg: float = Field(default=1.05, gt=0, allow_inf_nan=False)
    clip_cov_ratio: float = Field(default=0.0002, gt=0, le=1)
    clip_cov_lb: FiniteFloat = 1.0
    clip_cov_ub: FiniteFloat = 5.0
    kl_cov_ratio: float = Field(default=0.0002, gt=0, le=1)
    ppo_kl_coef: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    dro_beta: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    old_logprobs: Literal["behaviour", "trainer"] = "behaviour"
    """Denominator of the ratio: the engine's logprobs, or the trainer's own before the step (one more pass)."""
    rollout_is: Literal["token", "sequence"] | None = None
    """Truncated importance sampling between engine and trainer, by verl's rollout correction."""
    rollout_is_threshold: float | str = 2.0
    """Upper bound of a weight; ``"0.5_5.0"``: weights outside these two bounds become 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    """Tokens or sequences to reject, by verl's names: ``token_k1``, ``seq_mean_k3``, ...; separated by commas."""
    rollout_rs_threshold: float | str | None = None
    bypass_loss: Literal["ppo_clip", "reinforce"] = "ppo_clip"
    """The loss inside ``policy_loss = "bypass_mode"``; only ``reinforce`` is multiplied by ``rollout_is``'s weights."""
    critic: CriticConfig = CriticConfig()
    sft: SftConfig = SftConfig()
    dpo: DpoConfig = DpoConfig()

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, given: Any) -> Any:
        return with_preset(given)

    @field_validator("overlong", mode="before")
    @classmethod
    def _none(cls, overlong: Any) -> Any:
        return None if overlong == "none" else overlong

    @field_validator("rollout_is_threshold")
    @classmethod
    def _weight_threshold(cls, threshold: float | str) -> float | str:
        weight_threshold(threshold)
        return threshold

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.objective != "rl":
            _refuse_without_effect_in_imitation(self)
        if self.policy_loss == "dro" and self.dro_beta is None:
            raise ValueError("policy_loss = 'dro' needs dro_beta, the weight of its quadratic penalty; set it above 0")
        self._refuse_aggregation_without_effect()
        if self.advantage == estimators.CREDIT and self.kl_reward_coef:
            raise ValueError(
                f"kl_reward_coef = {self.kl_reward_coef} is taken off rewards, and with advantage = 'credit' there are "
                "only advantages; use kl_loss_coef"
            )
        if self.rollout_rs is not None:
            rejection_thresholds(self.rollout_rs, self.rollout_rs_threshold)
        if self.policy_loss == "bypass_mode" and self.old_logprobs == "trainer":
            raise ValueError(
                "policy_loss = 'bypass_mode' takes its ratio against the engine's logprobs; leave old_logprobs out"
            )
        if self.policy_loss == "bypass_mode" and self.rollout_is is not None and self.bypass_loss != "reinforce":
            raise ValueError(
                f"policy_loss = 'bypass_mode' multiplies by no weights with bypass_loss = {self.bypass_loss!r}, so "
                f"rollout_is = {self.rollout_is!r} would have no effect; set bypass_loss = 'reinforce', or leave "
                "rollout_is out"
            )
        return self

    def _refuse_aggregation_without_effect(self) -> None:
        loss, mode = POLICY_LOSSES.get(self.policy_loss), self.loss_agg_mode
        only = loss.aggregation if loss else None
        by_preset = self.preset is not None and PRESETS[self.preset].get("loss_agg_mode") == mode
        if only not in (None, mode) and "loss_agg_mode" in self.model_fields_set and not by_preset:
            raise ValueError(
                f"policy_loss = {self.policy_loss!r} always averages by {only}, so loss_agg_mode = {mode!r} would have "
                "no effect; leave it out"
            )

    @property
    def needs_baseline(self) -> bool:
        """Whether every group must have an attempt in mode ``baseline``."""
        return estimators.needs_baseline(self.advantage)

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model is loaded: for a KL term, or for DPO."""
        return bool(self.kl_loss_coef or self.kl_reward_coef) or self.objective == "dpo"

    @property
    def corrects_rollouts(self) -> bool:
        """Whether weights or rejections are computed before the step; ``bypass_mode`` does so inside its loss."""
        return self.policy_loss != "bypass_mode" and (self.rollout_is is not None or self.rollout_rs is not None)

    @property
    def recomputes_old_logprobs(self) -> bool:
        """Whether the loss takes its ratio against the trainer's own log-probabilities before the step."""
        return self.old_logprobs == "trainer" or self.corrects_rollouts


def _refuse_without_effect_in_imitation(algorithm: "AlgorithmConfig") -> None:
    """Raise ``ValueError`` if a setting is given that the objective does not read, or if its preset is not named.

    Both SFT and DPO use the loss ``-A log p``, with a factor ``A`` per token that the objective decides, so settings of
    rewards, ratios or estimators do not apply.
    """
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
