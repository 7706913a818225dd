"""The rows of the table: every estimator and loss that verl registers, and every preset, with formula and peer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.algorithms.papers import PAPERS, Formula, ValueCredit
from benchmarks.algorithms.peers import Peer, by_torchrl, by_trl
from benchmarks.algorithms.samples import Shape
from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig, DpoConfig
from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.algorithms.presets import PRESETS
from lightning_trainer.config.policies.credit import CreditSettings, GaeBilevelCredit, GaeTokensCredit, GaeTurnsCredit
from lightning_trainer.config.policies.estimators import ESTIMATORS

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
"""Settings at which the formula differs from its neighbors on the samples of ``update.py``."""
_NO_PAPER = {"optimal_token_baseline", "tir_optimal_token_baseline", "bypass_mode"}
"""Estimators and losses without a paper: their source is verl's description."""

_ANY = Shape()
_LARGE_REWARDS = Shape(reward_scale=100.0)
"""For TRL, which adds 1e-4 to the deviation; the papers add nothing."""
_WHOLE_ANSWERS = Shape(one_call=True, noise_nats=0.0)
"""For TRL's RLOO, which knows neither a tool's answer nor another engine's log-probabilities."""


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    name: str
    algorithm: AlgorithmConfig
    formula: Formula
    """Written independently of ``algorithm``: a preset's numbers come from its paper."""
    value_credit: CreditSettings | None = None
    value_formula: ValueCredit | None = None
    peer: Peer | None = None
    """Another library that implements the same."""
    shape: Shape = _ANY

    @property
    def source(self) -> str:
        return "formula, no paper" if self.name.split(",")[0] in _NO_PAPER else "paper formula"


def cases() -> Iterator[Case]:
    for case in _cases():
        peer = _PEERS.get((case.kind, case.name))
        shape = _SHAPES.get((case.kind, case.name), case.shape)
        yield replace(case, peer=peer, shape=shape)


def _cases() -> Iterator[Case]:
    for name in ESTIMATORS:
        yield _case("estimator", name, advantage=name)
    yield _case("estimator", "grpo, no deviation", normalize_by_std=False)
    for name in POLICY_LOSSES:
        yield _case("loss", name, policy_loss=name, **{**_WIDE, **_FOR_LOSS.get(name, {})})
    reinforce = {"bypass_loss": "reinforce", "rollout_is": "token", "rollout_is_threshold": 1.1}
    yield _case("loss", "bypass_mode, reinforce", policy_loss="bypass_mode", **reinforce)
    for bound in (1.05, 1.4):
        yield _case("loss", f"vanilla, dual clip at {bound}", clip_ratio_c=bound)
    for mode in ("token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"):
        yield _case("aggregation", mode, loss_agg_mode=mode)
    for estimator in ("k1", "k2", "k3", "abs", "low_var_kl", "k1+", "k3+"):
        yield _case("KL in the loss", estimator, kl_loss_coef=0.5, kl_loss_type=estimator)
    for estimator in ("k1", "k2", "k3", "abs"):
        penalty = {"kl_reward_coef": 0.5, "kl_reward_type": estimator}
        yield _case("KL in the reward", estimator, advantage="reinforce_plus_plus", **penalty)
    yield _case("entropy", "bonus of 0.1", entropy_coeff=0.1)
    for what in ("token", "sequence"):
        name = f"truncated weights, {what}"
        yield _case("rollout correction", name, rollout_is=what, rollout_is_threshold=1.1)
    for name, bound in (("token_k1", 1.3), ("token_k1", "0.8_1.5"), ("seq_mean_k1", 1.05)):
        rejection = {"rollout_rs": name, "rollout_rs_threshold": bound}
        yield _case("rollout correction", f"rejection, {name} {bound}", **rejection)
    yield _case("rollout correction", "old of the trainer", old_logprobs="trainer")
    yield from _with_a_critic()
    yield from _imitations()
    for name in PRESETS:
        algorithm = AlgorithmConfig(preset=name)
        # Whose log-probabilities are the old ones is the system's choice; everything else is the paper's.
        formula = replace(PAPERS[name], old_logprobs=algorithm.old_logprobs)
        yield Case("preset", name, algorithm, formula)


def _case(kind: str, name: str, **settings: Any) -> Case:
    return Case(kind, name, AlgorithmConfig(**settings), Formula(**settings))


def _with_a_critic() -> Iterator[Case]:
    rows = Shape(two_calls_are_rows=True)
    for credit, formula in (
        (GaeTurnsCredit(gamma=0.9, lam=0.8), ValueCredit("gae_turns", 0.9, 0.8)),
        (GaeTokensCredit(gamma=0.9, lam=0.8), ValueCredit("gae_tokens", 0.9, 0.8)),
        (
            GaeBilevelCredit(gamma_turn=0.9, lam_turn=0.8, gamma_token=0.97, lam_token=0.9),
            ValueCredit("gae_bilevel", 0.9, 0.8, 0.97, 0.9),
        ),
    ):
        yield Case("credit with a critic", formula.scheme, AlgorithmConfig(), Formula(), credit, formula, shape=rows)


def _imitations() -> Iterator[Case]:
    mode = "seq-mean-token-mean"
    sft = AlgorithmConfig(preset="sft", loss_agg_mode=mode)
    yield Case("imitation", "sft, mean of means", sft, Formula(objective="sft", loss_agg_mode=mode))
    variants: Mapping[str, Mapping[str, Any]] = {
        "dpo, beta 1": {"beta": 1.0},
        "dpo, label smoothing": {"beta": 1.0, "label_smoothing": 0.2},
        "dpo, length normalized": {"beta": 5.0, "length_normalized": True},
    }
    for name, settings in variants.items():
        dpo = AlgorithmConfig(preset="dpo", dpo=DpoConfig(**settings))
        yield Case("imitation", name, dpo, Formula(objective="dpo", **settings))


_PPO: Mapping[str, Any] = {"epsilon": 0.2, "epsilon_high": 0.28, "delta": 3.0}
"""The defaults of ``Formula`` by TRL's names; its ``dapo`` is the mean over all tokens."""
_WIDE_TRL: Mapping[str, Any] = {"loss_type": "dapo", "epsilon": 0.15, "epsilon_high": 0.15}
_PLAIN_KL: Mapping[str, Any] = {"use_bias_correction_kl": False}
"""TRL multiplies by the ratio by default, as DeepSeek-V3.2 does: the papers here have the divergence alone."""
_SCALED = {
    ("estimator", "grpo"): by_trl("GRPOTrainer", loss_type="dapo", **_PPO),
    ("estimator", "grpo_vectorized"): by_trl("GRPOTrainer", loss_type="dapo", **_PPO),
    ("loss", "vanilla"): by_trl("GRPOTrainer", delta=3.0, **_WIDE_TRL),
    ("loss", "gspo"): by_trl("GRPOTrainer", importance_sampling_level="sequence", **_WIDE_TRL),
    ("loss", "sapo"): by_trl("GRPOTrainer", loss_type="sapo", sapo_temperature_pos=1.0, sapo_temperature_neg=1.05),
    ("loss", "geo_mean"): by_trl("GMPOTrainer", epsilon=0.1, epsilon_high=0.1),
    ("loss", "vanilla, dual clip at 1.4"): by_trl("GRPOTrainer", loss_type="dapo", **{**_PPO, "delta": 1.4}),
    ("aggregation", "seq-mean-token-sum"): by_trl("GRPOTrainer", loss_type="luspo", **_PPO),
    ("aggregation", "seq-mean-token-mean"): by_trl("GRPOTrainer", loss_type="grpo", **_PPO),
    ("aggregation", "seq-mean-token-sum-norm"): by_trl("GRPOTrainer", loss_type="dr_grpo", **_PPO),
    ("KL in the loss", "k3"): by_trl("GRPOTrainer", loss_type="dapo", beta=0.5, **_PLAIN_KL, **_PPO),
    ("KL in the loss", "low_var_kl"): by_trl("GRPOTrainer", loss_type="dapo", beta=0.5, **_PLAIN_KL, **_PPO),
    ("entropy", "bonus of 0.1"): by_trl("GRPOTrainer", loss_type="dapo", entropy_coef=0.1, **_PPO),
    ("rollout correction", "truncated weights, token"): by_trl(
        "GRPOTrainer", loss_type="dapo", engine_weights="token_truncate", engine_weights_max=1.1, **_PPO
    ),
    ("rollout correction", "truncated weights, sequence"): by_trl(
        "GRPOTrainer", loss_type="dapo", engine_weights="sequence_truncate", engine_weights_max=1.1, **_PPO
    ),
    ("rollout correction", "old of the trainer"): by_trl("GRPOTrainer", loss_type="dapo", on_policy=True, **_PPO),
    ("preset", "grpo"): by_trl("GRPOTrainer", loss_type="grpo", beta=0.04, epsilon=0.2, **_PLAIN_KL),
    ("preset", "dapo"): by_trl("GRPOTrainer", loss_type="dapo", epsilon=0.2, epsilon_high=0.28),
    ("preset", "gspo"): by_trl(
        "GRPOTrainer",
        loss_type="grpo",
        importance_sampling_level="sequence",
        epsilon=3e-4,
        epsilon_high=4e-4,
        on_policy=True,
    ),
    # TRL's upper bound is the ratio itself.
    ("preset", "cispo"): by_trl("GRPOTrainer", loss_type="cispo", epsilon_high=1.2),
}
_PEERS: Mapping[tuple[str, str], Peer] = {
    **_SCALED,
    ("estimator", "grpo, no deviation"): by_trl("GRPOTrainer", loss_type="dapo", scale_rewards="none", **_PPO),
    ("estimator", "rloo"): by_trl("RLOOTrainer", gives="advantages"),
    ("estimator", "rloo_vectorized"): by_trl("RLOOTrainer", gives="advantages"),
    ("estimator", "gae"): by_torchrl(),
    ("credit with a critic", "gae_turns"): by_torchrl(),
    ("credit with a critic", "gae_tokens"): by_torchrl(),
    ("credit with a critic", "gae_bilevel"): by_torchrl(),
    ("imitation", "dpo, beta 1"): by_trl("DPOTrainer", beta=1.0),
    ("imitation", "dpo, length normalized"): by_trl("DPOTrainer", beta=5.0, loss_type=["sigmoid_norm"]),
    ("preset", "dr_grpo"): by_trl("GRPOTrainer", loss_type="dr_grpo", scale_rewards="none", epsilon=0.2),
    # Its loss is a ratio's, which has the gradient of REINFORCE but another value.
    ("preset", "rloo"): by_trl("RLOOTrainer", gives="advantages and gradient", beta=0.03),
    ("preset", "ppo"): by_torchrl(),
    ("preset", "starpo_s"): by_torchrl(),
    ("preset", "sft"): by_trl("SFTTrainer"),
    ("preset", "dpo"): by_trl("DPOTrainer", beta=0.1),
}
_SHAPES: Mapping[tuple[str, str], Shape] = {
    **dict.fromkeys(_SCALED, _LARGE_REWARDS),
    ("estimator", "rloo"): _WHOLE_ANSWERS,
    ("estimator", "rloo_vectorized"): _WHOLE_ANSWERS,
    ("preset", "rloo"): _WHOLE_ANSWERS,
}
