"""``lightning-trainer environments list`` and ``install``."""

import sys
import time
from pathlib import Path

from rich.table import Table
from rich.text import Text

from lightning_trainer.cli.environments.settings import environment_settings
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.environments.install import install
from lightning_trainer.environments.registry import KNOWN, interpreter_of


def list_environments(config: Path | None, folder: Path | None) -> None:
    """Print a table."""
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
    """Raises LightningError: there is no such environment, or pip could not install it."""
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
