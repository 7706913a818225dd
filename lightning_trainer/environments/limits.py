"""The resources that an environment may use before it counts as broken, and how ``lightning.toml`` sets them."""

from dataclasses import dataclass
from pathlib import Path

from lightning_trainer.config import EnvironmentsConfig
from lightning_trainer.config.file import load_usual_config


@dataclass(frozen=True)
class Limits:
    """Limits of an environment, with the defaults of ``[environments]`` in ``lightning.toml``."""

    start_timeout_s: float = 60.0
    """Time until the environment's process has imported everything."""
    reset_timeout_s: float = 30.0
    step_timeout_s: float = 5.0
    memory_mib: int = 2048
    """Memory of the environment's process and of everything that it starts, together."""
    message_kib: int = 1024
    """Size of one observation or action."""


def environment_settings(config: Path | None = None, folder: Path | None = None) -> EnvironmentsConfig:
    """Return ``[environments]`` of the named configuration, or of the one in this folder, else the defaults.

    Args:
        folder: the folder of the interpreters, in place of the configured one.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    settings = load_usual_config(config).environments
    return settings if folder is None else settings.model_copy(update={"folder": folder})


def limits_of(settings: EnvironmentsConfig) -> Limits:
    """Return the section's limits: all of its settings except ``folder``."""
    return Limits(**settings.model_dump(exclude={"folder"}))
