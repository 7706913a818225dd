"""Sends rows to Weights & Biases. Each of our runs is one run there, which a restarted daemon resumes."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from lightning_trainer.config.metrics import WandbConfig
from lightning_trainer.errors import ConfigError, MissingExtraError
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.metrics.to_jsonl import with_warnings


class WeightsAndBiases:
    """A sink that queues rows for the service's own process, which sends them."""

    def __init__(self, settings: WandbConfig, *, policy: str, state_dir: Path) -> None:
        """Start or resume the run; asks the service for it when online.

        Raises:
            MissingExtraError: wandb is not installed.
            ConfigError: the service refused (no key, no such entity).
        """
        try:
            import wandb
        except ImportError as error:
            raise MissingExtraError(
                "metrics.wandb is set and wandb is not installed: pip install wandb, or take the section out"
            ) from error
        folder = state_dir / "metrics"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=settings.project,
                entity=settings.entity,
                name=settings.run or f"{policy} {state_dir.name}",
                id=hashlib.blake2b(f"{state_dir}\n{policy}".encode(), digest_size=8).hexdigest(),
                resume="allow",
                mode=settings.mode,
                dir=str(folder),
            )
        except Exception as error:  # wandb raises whatever its transport raises; it all means that there is no run
            raise ConfigError(
                f'metrics.wandb cannot be used ({error}); run `wandb login`, set mode to "offline", or take it out'
            ) from error

    def write(self, row: StepMetrics, warnings: Mapping[str, str]) -> None:
        self._run.log(with_warnings(row, warnings), step=row.step)

    def close(self) -> None:
        self._run.finish()
