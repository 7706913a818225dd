"""Separate interpreters for third-party environments, whose packages conflict with ours and with each other's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from lightning_trainer.environments.errors import UnknownEnvironmentError
from lightning_trainer.environments.registry import DEFAULT_FOLDER, KNOWN, interpreter_of
from lightning_trainer.errors import LightningError

_LONGEST_S = 1800.0


def install(
    name: str, folder: Path = DEFAULT_FOLDER, *, python: str = sys.executable, extra: tuple[str, ...] = ()
) -> Path:
    """Create the interpreter that ``name`` runs in, or install additional packages into it; return its path.

    It has a temporary name until it is complete: an interrupted installation leaves nothing that looks finished.

    Args:
        python: the interpreter that it is made from.
        extra: more packages for the same interpreter, in pip's syntax.

    Raises:
        UnknownEnvironmentError: there is no environment of that name.
        LightningError: pip failed; the message is its last line.
    """
    known = KNOWN.get(name)
    if known is None:
        raise UnknownEnvironmentError(f"there is no environment {name!r}; there are {', '.join(sorted(KNOWN))}")
    if known.interpreter is None:
        return Path(sys.executable)  # all packages that it needs are here
    home = folder.absolute() / known.interpreter
    requirements = [*known.requirements, *extra]
    if home.is_dir():
        _pip(interpreter_of(known.interpreter, folder), requirements, name)
        return home
    unfinished = home.with_name(f"{home.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    _run([python, "-m", "venv", str(unfinished)], name)
    _pip(unfinished / "bin" / "python", requirements, name)
    unfinished.rename(home)
    return home


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
