"""What one engine process is started with: ``[engine]`` as it was read, and what the run adds to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightning_trainer.config import Config, EngineConfig, PolicyConfig
from lightning_trainer.config.hardware import available_cores


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One policy, or the adapters of several, served from one model folder."""

    model_dir: Path
    """Version 0 of every policy: config.json, safetensors, tokenizer."""
    policies: tuple[str, ...]
    """The model names that requests give; more than one only where adapters are served."""
    weights_dir: Path
    """Publications are read from here and nowhere else."""
    log_dir: Path
    """Gets engine.log, and engine.previous.log of the life before."""
    engine: EngineConfig = field(default_factory=lambda: EngineConfig())
    threads: int | None = None
    """CPU only, of this process."""
    gpus: tuple[str, ...] | None = None
    """All that it sees, as ``CUDA_VISIBLE_DEVICES`` names them; None: those that the daemon sees."""
    gpu_memory_utilization: float | None = None
    """Share of each; None: vLLM's own."""
    sleeps: bool = False
    """Whether it can give its GPU memory away for a while."""
    drain_timeout_s: float | None = None
    """How long a publication waits for running requests before it aborts them; None: to their end."""
    host: str = "127.0.0.1"
    """The address that it listens on."""
    lora_rank: int | None = None
    """The largest rank of the adapters that are published; None: publications hold all weights."""

    @property
    def log_path(self) -> Path:
        return self.log_dir / "engine.log"

    @property
    def startup_timeout_s(self) -> float:
        return self.engine.startup_timeout_s


def engine_settings(
    config: Config, policies: Sequence[PolicyConfig], model_dir: Path, weights_dir: Path, log_dir: Path
) -> EngineSettings:
    """Return the settings of one engine of a configuration.

    Args:
        policies: that it serves: one, or several that train adapters of the same model.
    """
    ranks = [policy.lora.rank for policy in policies if policy.lora is not None]
    return EngineSettings(
        model_dir=model_dir,
        policies=tuple(policy.name for policy in policies),
        weights_dir=weights_dir,
        log_dir=log_dir,
        engine=config.engine,
        threads=config.engine.threads,
        gpu_memory_utilization=config.engine.gpu_memory_utilization,
        drain_timeout_s=config.engine.drain_timeout_s,
        lora_rank=max(ranks, default=None),
    )


def replica_settings(settings: EngineSettings, count: int) -> tuple[EngineSettings, ...]:
    """Return the settings of so many engines that serve the same: each with logs and a share of the cores.

    Threads that were asked for are asked for by each; on a cluster nobody here knows the cores.
    """
    if count == 1:
        return (settings,)
    threads = settings.threads
    if settings.engine.placement == "local":
        threads = threads or max(1, available_cores() // count)
    return tuple(
        replace(settings, log_dir=settings.log_dir / f"replica-{index + 1}", threads=threads) for index in range(count)
    )
