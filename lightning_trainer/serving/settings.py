"""Settings of one engine process: the ``[engine]`` section, and the run's own values."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightning_trainer.config import Config, EngineConfig, PolicyConfig
from lightning_trainer.config.hardware import available_cores


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """An engine for one policy, or for the adapters of several, on one model folder."""

    model_dir: Path
    """Version 0 of every policy: config.json, safetensors, tokenizer."""
    policies: tuple[str, ...]
    """The model names in requests; more than one only if adapters are served."""
    weights_dir: Path
    """The only folder from which publications are read."""
    log_dir: Path
    """Holds engine.log, and engine.previous.log of the previous life."""
    engine: EngineConfig = field(default_factory=lambda: EngineConfig())
    threads: int | None = None
    """CPU threads of this process; None: all cores of the machine where it runs, which may be a cluster's node."""
    gpus: tuple[str, ...] | None = None
    """The only GPUs that it sees, in the syntax of ``CUDA_VISIBLE_DEVICES``; None: those that the daemon sees."""
    gpu_memory_utilization: float | None = None
    """Share of each GPU's memory; None: vLLM's default."""
    sleeps: bool = False
    """Whether it can release its GPU memory for a while."""
    drain_timeout_s: float | None = None
    """How long a publication waits for running requests before it aborts them; None: until they end."""
    host: str = "127.0.0.1"
    """The address that it listens on."""
    lora_rank: int | None = None
    """The largest rank of the published adapters; None: publications contain all weights."""

    @property
    def log_path(self) -> Path:
        """Return the file of the engine process's log."""
        return self.log_dir / "engine.log"

    @property
    def threads_here(self) -> int:
        """Return the threads of a process on this machine."""
        return self.threads or available_cores()

    @property
    def startup_timeout_s(self) -> float:
        """Return how long the engine may take to start, in seconds."""
        return self.engine.startup_timeout_s


def engine_settings(
    config: Config, policies: Sequence[PolicyConfig], model_dir: Path, weights_dir: Path, log_dir: Path
) -> EngineSettings:
    """Return the settings of one engine of a configuration.

    Args:
        policies: the policies that it serves: one, or several that train adapters of the same model and have the same
            settings.
    """
    ranks = [policy.lora.rank for policy in policies if policy.lora is not None]
    return EngineSettings(
        model_dir=model_dir,
        policies=tuple(policy.name for policy in policies),
        weights_dir=weights_dir,
        log_dir=log_dir,
        engine=config.engine_of(policies[0]),
        threads=config.engine.threads,
        gpu_memory_utilization=config.engine.gpu_memory_utilization,
        drain_timeout_s=config.engine.drain_timeout_s,
        lora_rank=max(ranks, default=None),
    )


def replica_settings(settings: EngineSettings, count: int) -> tuple[EngineSettings, ...]:
    """Return the settings of ``count`` replicas: each with its own logs and a share of the cores.

    An explicit number of threads applies to each; on a cluster, the number of cores is not known here.
    """
    if count == 1:
        return (settings,)
    threads = settings.threads
    if settings.engine.placement == "local":
        threads = threads or max(1, available_cores() // count)
    return tuple(
        replace(settings, log_dir=settings.log_dir / f"replica-{index + 1}", threads=threads) for index in range(count)
    )
