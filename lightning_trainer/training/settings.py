"""All of the trainer's settings in one picklable value without torch, which is sent to the Ray actor; and what is known
about its schedule before a run starts: how many optimizer steps a step can have, and warnings.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightning_trainer.config import Config, EngineConfig, PolicyConfig
from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.algorithms.presets import PRESETS
from lightning_trainer.config.hardware import Dtype, available_cores
from lightning_trainer.config.policies import estimators
from lightning_trainer.config.policies.credit import CreditSettings
from lightning_trainer.config.policies.stages import first_steps
from lightning_trainer.config.policies.updates import LoraConfig, OptimizerConfig
from lightning_trainer.config.training import TrainingConfig
from lightning_trainer.training.tree.mini_batches import GROUPS_AT_LEAST

_PROBE_TOLERANCE = {"float32": (1e-3, 2e-4), "bfloat16": (1.0, 0.1)}
"""By serving dtype: largest and mean |trainer - engine| of a probe logprob, nats."""


def one_thread() -> TrainingConfig:
    """Return the settings of a trainer that computes in float32, on one thread of a CPU."""
    return TrainingConfig(device="cpu", dtype="float32", threads=1)


@dataclass(frozen=True, slots=True)
class StageSettings:
    """The settings of a stage, from its first step on."""

    first_step: int
    advantage: str
    algorithm: AlgorithmConfig
    value_credit: CreditSettings | None
    optimizer: OptimizerConfig


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """The settings of one policy's trainer.

    The defaults are those of ``lightning.toml``, except for what it leaves to the machine (device, threads, precisions,
    and the tolerances that follow from these): here that is one thread of a CPU and float32.
    """

    policy: str
    model_dir: Path
    """A Hugging Face folder: config.json and safetensors."""
    advantage: str = "grpo"
    """Name in verl's advantage-estimator registry, or ``credit``: the credits are the advantages."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """All of it except ``advantage``, which the credit scheme may replace."""
    value_credit: CreditSettings | None = None
    """The credit scheme, if it needs a critic's values: the credits are then rewards."""
    horizon: int = 2048
    """Length in tokens of the longest sample, independent of the batch."""
    reference_dir: Path | None = None
    """The frozen reference model for divergences; None: ``model_dir``."""
    lora: LoraConfig | None = None
    """None: all weights are trained. A critic, if there is one, always trains all of its weights."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=one_thread)
    """``[training]``, with offloading decided; if ``threads`` is absent, each process takes its share of the cores of
    the machine where it runs, which in a cluster may not be the daemon's."""
    gpus_per_process: float = 0.0
    """GPUs that each process requests from Ray."""
    serving_dtype: Dtype = "float32"
    """Of the published file."""
    max_model_len: int = 2048
    """Tokens of the engine's longest sequence."""
    probe_max_abs: float = 1e-3
    probe_mean_abs: float = 2e-4
    log_dir: Path | None = None
    """Folder for the Ray actor's logs; None: no logs."""
    base: str | None = None
    """Policies with an equal value share one model, each with its own adapter; None: the policy has its own model."""
    first_step: int = 1
    """Of the stage."""
    stages: tuple[StageSettings, ...] = ()
    """In order; the fields above are then the first one's."""

    @property
    def threads_here(self) -> int:
        """Return the threads of a process on this machine; in a cluster, as if all processes were on it."""
        return self.training.threads or max(1, available_cores() // self.training.world_size)

    def at_step(self, step: int) -> "TrainerSettings":
        """Return the settings of the stage that a step belongs to."""
        begun = [stage for stage in self.stages if stage.first_step <= step]
        return self._in_stage(begun[-1]) if begun else self

    @property
    def of_stages(self) -> tuple["TrainerSettings", ...]:
        """Return the settings of each stage, in order; these alone if there are no stages."""
        return tuple(map(self._in_stage, self.stages)) or (self,)

    def _in_stage(self, stage: StageSettings) -> "TrainerSettings":
        return replace(
            self,
            stages=(),
            first_step=stage.first_step,
            advantage=stage.advantage,
            algorithm=stage.algorithm,
            value_credit=stage.value_credit,
            optimizer=stage.optimizer,
        )

    @property
    def needs_critic(self) -> bool:
        """Whether the credit scheme or the advantage estimator needs a critic's values."""
        if self.algorithm.objective != "rl":
            return False
        return self.value_credit is not None or estimators.needs_values(self.advantage)


def trainer_settings(
    config: Config,
    policy: PolicyConfig,
    model_dir: Path,
    log_dir: Path,
    reference_dir: Path | None = None,
    *,
    gpus_per_process: float = 0.0,
    shares_gpu: bool = False,
) -> TrainerSettings:
    """Return the settings of one policy of a configuration.

    Args:
        model_dir: the resolved model.
        log_dir: folder for the trainer's logs.
        reference_dir: the resolved ``reference_model``, if one is named.
        gpus_per_process: GPUs of each of its processes.
        shares_gpu: with an engine or another trainer, which needs its memory between two updates.
    """
    stages = tuple(
        _stage(first_step, one)
        for first_step, one in zip(first_steps(policy.stage), policy.of_stages, strict=False)  # without stages: none
    )
    policy = policy.at_step(1)
    training = config.training
    offloaded = {
        name: shares_gpu if getattr(training, name) is None else getattr(training, name)
        for name in ("param_offload", "optimizer_offload")
    }
    max_abs, mean_abs = _tolerance(config.engine)
    return TrainerSettings(
        policy=policy.name,
        model_dir=model_dir,
        advantage=policy.estimator,
        algorithm=policy.algorithm,
        value_credit=_value_credit(policy),
        horizon=policy.max_sample_tokens,
        reference_dir=reference_dir,
        lora=policy.lora,
        optimizer=policy.optimizer,
        training=training.model_copy(update=offloaded),
        gpus_per_process=gpus_per_process,
        serving_dtype=config.engine.dtype,
        max_model_len=config.engine_of(policy).max_model_len,
        probe_max_abs=max_abs,
        probe_mean_abs=mean_abs,
        log_dir=log_dir,
        base=base_of(config, policy),
        stages=stages,
    )


def base_of(config: Config, policy: PolicyConfig) -> str | None:
    """Return what policies must have in common to train their adapters on one model; None: the policy has its own.

    ``[training]`` and ``[engine]`` are the same for every policy.
    """
    if policy.lora is None or not config.training.share_base:
        return None
    return f"{policy.model} {policy.lora.model_dump_json()}"


def schedule_notes(config: Config, policy: PolicyConfig) -> list[str]:
    """Return warnings about what a policy's updates leave out or leave as it is, one sentence each, for all stages."""
    rounds = "bfloat16" in (config.engine.dtype, config.training.dtype)
    found: dict[str, None] = {}
    for stage in policy.of_stages if policy.train else ():
        sentences = schedule_sentences(
            stage.algorithm, groups_per_step=policy.groups_per_step, max_staleness=policy.max_staleness, rounds=rounds
        )
        found.update(dict.fromkeys(sentences))
    if policy.train and (left_out := _length_note(config.engine_of(policy), policy)) is not None:
        found[left_out] = None
    return list(found)


def _length_note(engine: EngineConfig, policy: PolicyConfig) -> str | None:
    """Return what becomes of the engine's longest sequences if the policy does not set how long a sample may be."""
    if "max_sample_tokens" in policy.model_fields_set or policy.max_sample_tokens >= engine.max_model_len:
        return None
    return (
        f"the engine serves sequences of up to max_model_len = {engine.max_model_len} tokens, and what is beyond the "
        f"default of max_sample_tokens, {policy.max_sample_tokens}, is not trained; set max_sample_tokens in the policy"
    )


def _stage(first_step: int, policy: PolicyConfig) -> StageSettings:
    return StageSettings(first_step, policy.estimator, policy.algorithm, _value_credit(policy), policy.optimizer)


def _value_credit(policy: PolicyConfig) -> CreditSettings | None:
    return policy.credit if policy.credit.needs_values else None


def _tolerance(engine: EngineConfig) -> tuple[float, float]:
    max_abs, mean_abs = _PROBE_TOLERANCE[engine.dtype]
    return engine.probe_max_abs or max_abs, engine.probe_mean_abs or mean_abs


_ROUNDING = 0.01
"""A clip range below this is within the rounding of a bfloat16 engine: 0.02 nats per token, less over a sequence."""
_PLAIN = ("vanilla", "gpg")
"""Losses that are expected to equal policy gradient in a single update."""


def most_mini_batches(algorithm: AlgorithmConfig, groups_per_step: int) -> int:
    """Return the number of mini-batches per epoch if every group is trained that ``keep_most_uncertain`` leaves."""
    groups = math.ceil(_share_trained(algorithm) * groups_per_step)
    return max(1, min(algorithm.mini_batches, groups // GROUPS_AT_LEAST))


def _share_trained(algorithm: AlgorithmConfig) -> float:
    if algorithm.dynamic_sampling:
        return 1.0  # groups are taken until a whole step's number of them is trained
    return algorithm.keep_most_uncertain or 1.0


def schedule_sentences(
    algorithm: AlgorithmConfig, *, groups_per_step: int, max_staleness: int | None, rounds: bool
) -> Iterator[str]:
    """Return warnings about settings that have no effect under the schedule, or probably not the intended one.

    Args:
        groups_per_step: of the policy.
        max_staleness: of the policy; None counts as synchronous, as it is with a runner.
        rounds: whether engine or trainer computes in bfloat16.
    """
    if algorithm.objective != "rl":
        return
    parts = most_mini_batches(algorithm, groups_per_step)
    by_preset = algorithm.preset and PRESETS[algorithm.preset].get("mini_batches") == algorithm.mini_batches
    if parts < algorithm.mini_batches and not by_preset:  # a preset's number belongs to its paper's batch
        kept = _share_trained(algorithm)
        share = "" if kept == 1 else f", of which keep_most_uncertain = {kept:g} are trained"
        yield (
            f"mini_batches = {algorithm.mini_batches} and groups_per_step = {groups_per_step}{share}: a mini-batch has "
            f"{GROUPS_AT_LEAST} groups or more, so there are at most {parts} in an epoch; groups_per_step = "
            f"{math.ceil(GROUPS_AT_LEAST * algorithm.mini_batches / kept)} gives all of them"
        )
    loss, known = algorithm.policy_loss, POLICY_LOSSES.get(algorithm.policy_loss)
    if known is None:
        return
    on_policy = not max_staleness or algorithm.recomputes_old_logprobs
    if parts * algorithm.ppo_epochs == 1 and on_policy and loss not in _PLAIN and not known.differs_at_one:
        yield (
            f"policy_loss = {loss!r} has the gradient of plain policy gradient: a step is one update from the weights "
            "that the ratio is taken against, so the ratio is 1; set mini_batches or ppo_epochs above 1 for it to "
            "differ, or leave policy_loss out"
        )
    tight = min(algorithm.clip_ratio_low, algorithm.clip_ratio_high)
    against_engine = not algorithm.recomputes_old_logprobs and loss != "bypass_mode"
    if rounds and against_engine and "clip_ratio_low" in known.reads and tight < _ROUNDING:
        yield (
            f"a clip range of {tight:g} is narrower than what bfloat16 rounds between engine and trainer, so tokens "
            'are clipped before any weight has moved; set old_logprobs = "trainer", or dtype = "float32" in '
            "[engine] and [training]"
        )
