"""``lightning-trainer environments list`` and ``install``."""

import sys
import time
from pathlib import Path

from rich.table import Table
from rich.text import Text

from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.config import EnvironmentsConfig
from lightning_trainer.config.file import load_config
from lightning_trainer.environments.install import install
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import KNOWN, interpreter_of

# ``[environments]`` of the configuration that a command uses, if there is one.

_DEFAULT = Path("lightning.toml")


def environment_settings(config: Path | None, folder: Path | None = None) -> EnvironmentsConfig:
    """Return the section of the named configuration, or of the one in this folder; ``folder`` overrides its own.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    path = config or (_DEFAULT if _DEFAULT.exists() else None)
    settings = EnvironmentsConfig() if path is None else load_config(path).environments
    return settings if folder is None else settings.model_copy(update={"folder": folder})


def limits_of(settings: EnvironmentsConfig) -> Limits:
    """Return the section's limits: all of its settings but ``folder``."""
    return Limits(**settings.model_dump(exclude={"folder"}))


def list_environments(config: Path | None, folder: Path | None) -> None:
    """Print a table of all environments: what each needs, and whether it is installed."""
    home = environment_settings(config, folder).folder
    table = Table("name", "about", "needs", "installed", box=None, pad_edge=False)
    for name, known in sorted(KNOWN.items()):
        there = known.interpreter is None or interpreter_of(known.interpreter, home).exists()
        needs = " ".join(known.requirements) or "nothing more"
        table.add_row(Text(name), Text(known.about), Text(needs), "yes" if there else "no")
    TerminalConsole().print(table)


def install_environment(
    name: str, packages: tuple[str, ...], config: Path | None, folder: Path | None, python: str | None
) -> None:
    """Install an environment into its own interpreter.

    Raises:
        LightningError: there is no such environment, or pip could not install it.
    """
    console = TerminalConsole()
    known = KNOWN.get(name)
    if known is not None and known.interpreter is None and not packages:
        console.print(f"{name} needs nothing that is not installed", markup=False)
        return
    began = time.monotonic()
    home = environment_settings(config, folder).folder
    with console.status(f"installing {name} into {home} ..."):
        where = install(name, home, python=python or sys.executable, extra=packages)
    console.print(f"{name} is installed in {where} ({time.monotonic() - began:.0f} s)", markup=False, highlight=False)
