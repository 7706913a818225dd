"""Everything the trainer needs to know, in one picklable value without torch: it travels to the Ray actor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightning_trainer.config import Config, EngineConfig, PolicyConfig

Dtype = Literal["bfloat16", "float32"]

_PROBE_TOLERANCE = {"float32": (1e-3, 2e-4), "bfloat16": (1.0, 0.1)}
"""By serving dtype: largest and mean |trainer - engine| of a probe logprob, nats."""


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """One policy's trainer. The defaults are ``lightning.toml``'s."""

    policy: str
    model_dir: Path
    """A Hugging Face folder: config.json and safetensors."""
    advantage: str = "grpo"
    """Name in verl's advantage-estimator registry, or ``credit``: the credits are the advantages."""
    normalize_by_std: bool = True
    policy_loss: str = "vanilla"
    """Name in verl's policy-loss registry."""
    loss_agg_mode: str = "token-mean"
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.28
    clip_ratio_c: float = 3.0
    lr: float = 1e-5
    schedule: Literal["constant", "cosine"] = "constant"
    total_steps: int | None = None
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.99)
    clip_grad: float = 1.0
    attention: Literal["tree", "stock"] = "tree"
    dtype: Dtype = "float32"
    """Of the matrix products; weights, gradients and optimiser are float32."""
    serving_dtype: Dtype = "float32"
    """Of the published file."""
    probe_max_abs: float = 1e-3
    probe_mean_abs: float = 2e-4
    max_tokens_per_micro_batch: int = 8192
    gradient_checkpointing: bool = False
    threads: int = 1
    seed: int = 0
    log_dir: Path | None = None
    """Where the Ray actor's logs go; None: nowhere."""


def trainer_settings(config: Config, policy: PolicyConfig, model_dir: Path, log_dir: Path) -> TrainerSettings:
    """Return the settings of one policy of a configuration.

    Args:
        model_dir: the resolved model.
        log_dir: where the trainer may leave its logs.
    """
    training, algorithm, optimizer = config.training, policy.algorithm, policy.optimizer
    max_abs, mean_abs = _tolerance(config.engine)
    return TrainerSettings(
        policy=policy.name,
        model_dir=model_dir,
        advantage=policy.estimator,
        normalize_by_std=algorithm.normalize_by_std,
        policy_loss=algorithm.policy_loss,
        loss_agg_mode=algorithm.loss_agg_mode,
        clip_ratio_low=algorithm.clip_ratio_low,
        clip_ratio_high=algorithm.clip_ratio_high,
        clip_ratio_c=algorithm.clip_ratio_c,
        lr=optimizer.lr,
        schedule=optimizer.schedule,
        total_steps=optimizer.total_steps,
        warmup_steps=optimizer.warmup_steps,
        min_lr_ratio=optimizer.min_lr_ratio,
        weight_decay=optimizer.weight_decay,
        betas=optimizer.betas,
        clip_grad=optimizer.clip_grad,
        attention=training.attention,
        dtype=training.dtype,
        serving_dtype=config.engine.dtype,
        probe_max_abs=max_abs,
        probe_mean_abs=mean_abs,
        max_tokens_per_micro_batch=training.max_tokens_per_micro_batch,
        gradient_checkpointing=training.gradient_checkpointing,
        threads=training.threads or available_cores(),
        seed=training.seed,
        log_dir=log_dir,
    )


def available_cores() -> int:
    """Return the number of cores that this process may run on (containers and ``taskset`` included)."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tolerance(engine: EngineConfig) -> tuple[float, float]:
    max_abs, mean_abs = _PROBE_TOLERANCE[engine.dtype]
    return engine.probe_max_abs or max_abs, engine.probe_mean_abs or mean_abs
