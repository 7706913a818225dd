"""What one engine process is started with: ``lightning.toml`` and what the run adds to it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.config.cores import available_cores


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One policy, or the adapters of several, served from one model folder. The defaults are ``lightning.toml``'s."""

    model_dir: Path
    """Version 0 of every policy: config.json, safetensors, tokenizer."""
    policies: tuple[str, ...]
    """The model names that requests give; more than one only where adapters are served."""
    weights_dir: Path
    """Publications are read from here and nowhere else."""
    log_dir: Path
    """Gets engine.log, and engine.previous.log of the life before."""
    python: str | None = None
    dtype: str = "bfloat16"
    max_model_len: int = 2048
    max_num_seqs: int = 64
    kv_cache_gib: float = 2.0
    threads: int | None = None
    gpu: str | None = None
    """The only one that it sees, as ``CUDA_VISIBLE_DEVICES`` names it; None: those that the daemon sees."""
    chat_template: Path | None = None
    tool_call_parser: str | None = None
    keep_sampled_ids: bool = True
    routed_experts: bool | Literal["auto"] = "auto"
    startup_timeout_s: float = 600.0
    drain_timeout_s: float = 60.0
    """How long a publication waits for running requests before it aborts them."""
    lora_rank: int | None = None
    """The largest rank of the adapters that are published; None: publications hold all weights."""
    vllm_arguments: tuple[str, ...] = ()
    """More arguments of ``vllm serve``."""

    @property
    def log_path(self) -> Path:
        return self.log_dir / "engine.log"


def engine_settings(
    config: Config, policies: Sequence[PolicyConfig], model_dir: Path, weights_dir: Path, log_dir: Path
) -> EngineSettings:
    """Return the settings of one engine of a configuration.

    Args:
        policies: that it serves: one, or several that train adapters of the same model.
    """
    engine = config.engine
    ranks = [policy.lora.rank for policy in policies if policy.lora is not None]
    return EngineSettings(
        model_dir=model_dir,
        policies=tuple(policy.name for policy in policies),
        weights_dir=weights_dir,
        log_dir=log_dir,
        python=engine.python,
        dtype=engine.dtype,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        kv_cache_gib=engine.kv_cache_gib,
        threads=engine.threads,
        chat_template=engine.chat_template,
        tool_call_parser=engine.tool_call_parser,
        keep_sampled_ids=engine.keep_sampled_ids,
        routed_experts=engine.routed_experts,
        startup_timeout_s=engine.startup_timeout_s,
        lora_rank=max(ranks, default=None),
    )


def replica_settings(settings: EngineSettings, count: int) -> tuple[EngineSettings, ...]:
    """Return the settings of so many engines that serve the same: each with logs, a share of the cores and a GPU.

    Threads that were asked for are asked for by each. The GPUs of ``CUDA_VISIBLE_DEVICES`` are dealt out in turn.
    """
    if count == 1:
        return (settings,)
    threads = settings.threads or max(1, available_cores() // count)
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "").split(",") if gpu] or [None]
    return tuple(
        replace(
            settings, log_dir=settings.log_dir / f"replica-{index + 1}", threads=threads, gpu=gpus[index % len(gpus)]
        )
        for index in range(count)
    )
