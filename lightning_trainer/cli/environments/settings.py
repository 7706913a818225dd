"""``[environments]`` of the configuration that a command uses, if there is one."""

from pathlib import Path

from lightning_trainer.config import EnvironmentsConfig
from lightning_trainer.config.file import load_config
from lightning_trainer.environments.limits import Limits

_DEFAULT = Path("lightning.toml")


def environment_settings(config: Path | None, folder: Path | None = None) -> EnvironmentsConfig:
    """Return the section of the configuration that is named, or lies here; ``folder`` goes before its own.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    path = config or (_DEFAULT if _DEFAULT.exists() else None)
    settings = EnvironmentsConfig() if path is None else load_config(path).environments
    return settings if folder is None else settings.model_copy(update={"folder": folder})


def limits_of(settings: EnvironmentsConfig) -> Limits:
    return Limits(**settings.model_dump(exclude={"folder"}))
