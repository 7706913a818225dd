"""A line that is made once and kept in the state folder, for its owner alone; there in whole, or not at all."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from lightning_trainer.errors import ConfigError


def kept_once(path: Path, what: str, make: Callable[[], str]) -> str:
    """Return what is kept, made now if nothing is.

    Args:
        what: it is called, in an error.

    Raises:
        ConfigError: it cannot be kept, or cannot be read.
    """
    try:
        if not path.exists():
            _keep(path, make())
        return path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} in {path} cannot be read: {error}") from error
    except OSError as error:
        raise ConfigError(f"{what} cannot be kept in {path}: {error.strerror}") from error


def _keep(path: Path, line: str) -> None:
    """On a disk that is full, a file that was begun would be taken for what is kept at the next start."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):  # another process was faster: what it made is kept
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
