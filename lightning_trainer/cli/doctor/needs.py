"""How much memory a configuration takes on a machine without a GPU: estimates, calibrated on measurements.

Measured on SmolLM2-135M (134.5 M parameters), peak resident size of the trainer: 4.2 GiB at 1,024 and 6.4 GiB at 2,672
unique tokens per micro-batch in float32, 4.8 GiB at 2,672 in bfloat16; of the engine's processes: 3.6 GiB without the
key-value cache. Activations of other models are scaled by parameters to the power of two thirds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lightning_trainer.config import Config
from lightning_trainer.daemon.hardware.dealing import engine_groups, has_candidates, trainer_groups

Parameters: TypeAlias = Sequence[float | None]
"""Number of parameters of each policy's model, in the order of the configuration; None if unknown."""

TrainedParameters: TypeAlias = Sequence[float | None]
"""Number of parameters of what each policy trains and publishes: its model, or its adapter."""

GIB = 2**30

_MEASURED_PARAMETERS = 134.5e6
_ENGINE_BASE = 3.4 * GIB
_TRAINER_BASE = 0.8 * GIB
_RAY = 1.0 * GIB
_DAEMON = 0.5 * GIB
_BYTES_PER_PARAMETER_TRAINED = 16
"""float32 weights, gradients and AdamW's two moments."""
_BYTES_PER_PARAMETER_FROZEN = {"float32": 4, "bfloat16": 3}
"""For weights below an adapter; those of linear layers are kept in the precision of the matrix products."""
_ACTIVATION_BYTES_PER_TOKEN = {"float32": 1.39 * 2**20, "bfloat16": 0.78 * 2**20}
_SMALL_MICRO_BATCH = 1024
CHECKPOINT_BYTES_PER_PARAMETER = 12
"""float32 weights and AdamW's two moments."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory in bytes. ``least``: with small micro-batches; ``full``: with the largest ones that are configured."""

    engine: float
    trainer_least: float
    trainer_full: float
    rest: float

    @property
    def least(self) -> float:
        """Return the sum with small micro-batches, in bytes."""
        return self.engine + self.trainer_least + self.rest

    @property
    def full(self) -> float:
        """Return the sum with the largest micro-batches, in bytes."""
        return self.engine + self.trainer_full + self.rest


def memory_need(config: Config, parameters: Parameters) -> MemoryNeed:
    """Estimate what all policies together need on this machine; a model of unknown size counts as one of 135 M.

    Each trainer has its weights; those that compute at the same time (``policies_at_once``) also have activations.
    Adapters on one base share a trainer, and are small compared with it.
    """
    sizes = [_MEASURED_PARAMETERS if count is None else count for count in parameters]
    of_policy = dict(zip((policy.name for policy in config.policy), sizes, strict=True))
    engines = [group[0].name for group in engine_groups(config.policy)] * config.engine.replicas
    engines += [policy.name for policy in config.policy if has_candidates(policy)]
    if config.engine.placement == "cluster":
        engines = []
    engine = sum(
        _ENGINE_BASE + of_policy[name] * ITEM_BYTES[config.engine.dtype] + config.engine.kv_cache_gib * GIB
        for name in engines
    )
    training = config.training
    bases = [group[0] for group in trainer_groups(config) if any(policy.train for policy in group)]
    if not bases:
        return MemoryNeed(engine, 0.0, 0.0, _DAEMON)
    trained = [of_policy[base.name] for base in bases]
    frozen = _BYTES_PER_PARAMETER_FROZEN[training.dtype]
    per_parameter = [_BYTES_PER_PARAMETER_TRAINED if base.lora is None else frozen for base in bases]
    bytes_per_token = _ACTIVATION_BYTES_PER_TOKEN[training.dtype]
    per_token = sorted((bytes_per_token * (size / _MEASURED_PARAMETERS) ** (2 / 3) for size in trained), reverse=True)
    at_once = sum(per_token[: training.policies_at_once])
    weights = sum(_TRAINER_BASE + size * own for size, own in zip(trained, per_parameter, strict=True))
    most = training.max_tokens_per_micro_batch
    return MemoryNeed(
        engine=engine,
        trainer_least=weights + at_once * min(_SMALL_MICRO_BATCH, most),
        trainer_full=weights + at_once * most,
        rest=_DAEMON + (_RAY if training.backend == "ray" else 0.0),
    )
