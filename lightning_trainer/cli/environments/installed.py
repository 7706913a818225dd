"""``lightning-trainer environments list`` and ``install``: an interpreter for each third-party environment, whose
packages conflict with ours and with each other's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.table import Table
from rich.text import Text

from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.environments.errors import UnknownEnvironmentError
from lightning_trainer.environments.limits import environment_settings
from lightning_trainer.environments.registry import DEFAULT_FOLDER, KNOWN, check_system, interpreter_of, packaged
from lightning_trainer.errors import LightningError


def list_environments(config: Path | None, folder: Path | None) -> None:
    """Print a table of all environments: what each needs, and whether it is installed."""
    home = environment_settings(config, folder).folder
    table = Table("name", "about", "needs", "installed", box=None, pad_edge=False)
    for name, known in sorted(KNOWN.items()):
        there = known.interpreter is None or interpreter_of(known.interpreter, home).exists()
        needs = " ".join(known.requirements) or "nothing more"
        table.add_row(Text(name), Text(known.about), Text(needs), "yes" if there else "no")
    for name, point in sorted(packaged().items()):
        if name not in KNOWN:
            table.add_row(Text(name), Text(point.value), "nothing more", "yes")
    TerminalConsole().print(table)


def install_environment(
    name: str, packages: tuple[str, ...], config: Path | None, folder: Path | None, python: str | None
) -> None:
    """Install an environment into its own interpreter.

    Raises:
        LightningError: this is Windows, there is no such environment, it has no interpreter of its own, or pip could
            not install it.
    """
    check_system()
    console = TerminalConsole()
    known = KNOWN.get(name)
    if known is not None and known.interpreter is None:
        if packages:
            raise LightningError(
                f"{name} has no interpreter of its own, it runs in {sys.executable}: install {' '.join(packages)} "
                "there with pip"
            )
        console.print(f"{name} needs nothing that is not installed", markup=False)
        return
    began = time.monotonic()
    home = environment_settings(config, folder).folder
    with console.status(f"installing {name} into {home} ..."):
        where = install(name, home, python=python, extra=packages)
    console.print(f"{name} is installed in {where} ({time.monotonic() - began:.0f} s)", markup=False, highlight=False)


_LONGEST_S = 1800.0


def install(
    name: str, folder: Path = DEFAULT_FOLDER, *, python: str | None = None, extra: tuple[str, ...] = ()
) -> Path:
    """Create the interpreter that ``name`` runs in, or install additional packages into it; return its path.

    An interpreter that no longer works, as after an upgrade of the Python that it was made from, is replaced. The new
    one has a temporary name until it is complete: an interrupted installation leaves nothing that looks finished.

    Args:
        python: the Python to make it from, replacing one made from another; None: this one, if none works yet.
        extra: more packages for the same interpreter, in pip's syntax.

    Raises:
        UnknownEnvironmentError: there is no environment of that name.
        LightningError: pip failed; the message is its last line.
    """
    known = KNOWN.get(name)
    if known is None:
        raise UnknownEnvironmentError(f"there is no environment {name!r}; there are {', '.join(sorted(KNOWN))}")
    if known.interpreter is None:
        return Path(sys.executable)  # all packages that it needs are installed here
    home = folder.absolute() / known.interpreter
    requirements = [*known.requirements, *extra]
    interpreter = interpreter_of(known.interpreter, folder)
    if _works(interpreter, name) and (python is None or _made_from(interpreter, python)):
        _pip(interpreter, requirements, name)
        return home
    unfinished, replaced = (home.with_name(f"{home.name}.{which}") for which in ("unfinished", "replaced"))
    for remains in (unfinished, replaced):
        shutil.rmtree(remains, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    _run([python or sys.executable, "-m", "venv", str(unfinished)], name)
    _pip(unfinished / "bin" / "python", requirements, name)
    if home.exists():
        home.rename(replaced)
    unfinished.rename(home)
    shutil.rmtree(replaced, ignore_errors=True)
    return home


def _works(interpreter: Path, name: str) -> bool:
    """Whether it starts and has pip: upgrading Python removes the program behind its link, or changes its version."""
    try:
        _run([str(interpreter), "-m", "pip", "--version"], name)
    except LightningError:
        return False
    return True


def _made_from(interpreter: Path, python: str) -> bool:
    return interpreter.resolve() == Path(shutil.which(python) or python).resolve()


def _pip(python: Path, requirements: list[str], name: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-input"]
    _run([str(python), "-m", "pip", "install", *options, *requirements], name)


def _run(command: list[str], name: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LightningError(f"the environment {name} cannot be installed: {error}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise LightningError(f"the environment {name} cannot be installed: {lines[-1].strip()}")
