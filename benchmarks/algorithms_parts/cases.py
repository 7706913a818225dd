"""The rows of the table: every estimator and loss that verl registers, every preset, and what they are made of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_trainer.credit.estimators import ESTIMATORS
from lightning_trainer.credit.settings import CreditSettings, GaeBilevelCredit, GaeTokensCredit, GaeTurnsCredit
from lightning_trainer.training.algorithms.losses import POLICY_LOSSES
from lightning_trainer.training.algorithms.presets import PRESETS
from lightning_trainer.training.algorithms.settings import AlgorithmConfig, DpoConfig

_WIDE = {"clip_ratio_low": 0.15, "clip_ratio_high": 0.15}
_FOR_LOSS: Mapping[str, dict[str, Any]] = {
    "dro": {"dro_beta": 0.3},
    "clip_cov": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 3.0},
    "kl_cov": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.5},
    "dppo_tv": {"clip_ratio_low": 0.002, "clip_ratio_high": 0.002, "clip_ratio_c": 20.0},
    "dppo_kl": {"clip_ratio_low": 0.002, "clip_ratio_high": 0.002, "clip_ratio_c": 20.0},
    "geo_mean": {"clip_ratio_low": 0.1, "clip_ratio_high": 0.1},
    "bypass_mode": {"rollout_rs": "token_k1", "rollout_rs_threshold": 1.3},
}
"""Settings at which the formula differs from its neighbours on the samples of ``update.py``."""


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    name: str
    algorithm: AlgorithmConfig
    value_credit: CreditSettings | None = None


def cases() -> Iterator[Case]:
    for name in ESTIMATORS:
        yield Case("estimator", name, AlgorithmConfig(advantage=name))
    yield Case("estimator", "grpo, no deviation", AlgorithmConfig(normalize_by_std=False))
    for name in POLICY_LOSSES:
        yield Case("loss", name, _algorithm(policy_loss=name, **{**_WIDE, **_FOR_LOSS.get(name, {})}))
    yield Case(
        "loss",
        "bypass_mode, reinforce",
        _algorithm(policy_loss="bypass_mode", bypass_loss="reinforce", rollout_is="token", rollout_is_threshold=1.1),
    )
    yield Case("loss", "vanilla, dual clip at 1.05", _algorithm(clip_ratio_c=1.05))
    for mode in ("token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"):
        yield Case("aggregation", mode, _algorithm(loss_agg_mode=mode))
    for estimator in ("k1", "k2", "k3", "abs", "low_var_kl", "k1+", "k3+"):
        yield Case("KL in the loss", estimator, _algorithm(kl_loss_coef=0.5, kl_loss_type=estimator))
    for estimator in ("k1", "k2", "k3", "abs"):
        algorithm = _algorithm(advantage="reinforce_plus_plus", kl_reward_coef=0.5, kl_reward_type=estimator)
        yield Case("KL in the reward", estimator, algorithm)
    yield Case("entropy", "bonus of 0.1", _algorithm(entropy_coeff=0.1))
    for what in ("token", "sequence"):
        algorithm = _algorithm(rollout_is=what, rollout_is_threshold=1.1)
        yield Case("rollout correction", f"truncated weights, {what}", algorithm)
    for name, bound in (("token_k1", 1.3), ("token_k1", "0.8_1.5"), ("seq_mean_k1", 1.05)):
        algorithm = _algorithm(rollout_rs=name, rollout_rs_threshold=bound)
        yield Case("rollout correction", f"rejection, {name} {bound}", algorithm)
    yield Case("rollout correction", "old of the trainer", _algorithm(old_logprobs="trainer"))
    for scheme in (GaeTurnsCredit(gamma=0.9), GaeTokensCredit(gamma=0.9), GaeBilevelCredit()):
        yield Case("credit with a critic", scheme.scheme, _algorithm(), scheme)
    yield Case("imitation", "sft, mean of means", AlgorithmConfig(preset="sft", loss_agg_mode="seq-mean-token-mean"))
    for name, dpo in (
        ("dpo, beta 1", DpoConfig(beta=1.0)),
        ("dpo, label smoothing", DpoConfig(beta=1.0, label_smoothing=0.2)),
        ("dpo, length normalised", DpoConfig(beta=5.0, length_normalized=True)),
    ):
        yield Case("imitation", name, AlgorithmConfig(preset="dpo", dpo=dpo))
    for name in PRESETS:
        yield Case("preset", name, AlgorithmConfig(preset=name))


def _algorithm(**settings: Any) -> AlgorithmConfig:
    return AlgorithmConfig(**settings)
