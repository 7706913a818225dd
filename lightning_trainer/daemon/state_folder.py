"""The state folder, which only its owner may use, since it holds prompts, answers and weights."""

import asyncio
import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_trainer.errors import ConfigError, StoreError

if TYPE_CHECKING:  # commands read the token here, and need no store for it
    from lightning_trainer.store.store import Store

_log = logging.getLogger(__name__)

_EVERY_S = 60.0
_REST = 4.0
"""The pause after a slice of the store's sweep, as a multiple of the slice's time: others write, too."""


def close_to_others(folder: Path) -> None:
    """Make the folder, or take the permissions of group and others away from an existing one.

    Raises:
        ConfigError: it cannot be made, or is not a folder.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"[daemon] state_dir = {str(folder)!r} cannot be made: {error.strerror}") from error
    if not mode & 0o077:
        return
    try:
        folder.chmod(mode & 0o700)
    except OSError as error:
        _log.warning(
            "the state folder %s is open to other users (mode %o), and that cannot be changed: %s", folder, mode, error
        )
    else:
        _log.warning("the state folder %s was open to other users (mode %o); it is closed to them now", folder, mode)


def anothers(folder: Path) -> str:
    """Return what to tell a user who may not look into a state folder."""
    return f"the state folder {folder} is another user's: run this as that user, or as root, for example with sudo"


def kept_once(path: Path, what: str, make: Callable[[], str]) -> str:
    """Return the line that is kept in this file of the state folder, made and written now, whole, if there is none.

    Args:
        what: the line's name in an error.

    Raises:
        ConfigError: the line cannot be kept, or cannot be read.
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
    """Write the file whole or not at all: the next start would take one that was cut short on a full disk for whole."""
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


async def keep_within_limits(store: "Store", *, every_s: float = _EVERY_S) -> None:
    """Have the store delete what is too old or was used, a slice at a time, forever; it limits its size by itself.

    If the store cannot be written, try again.
    """
    while True:
        try:
            store.retention.begin_sweep()
            more = True
            while more:
                began = time.monotonic()
                more = await store.sweep()
                await asyncio.sleep(_REST * (time.monotonic() - began))
            if store.write_failure is not None:
                await store.try_to_write()
        except StoreError as error:
            _log.warning("nothing could be deleted from the store: %s", error)
        except Exception:
            _log.exception("nothing could be deleted from the store because of an unexpected error")
        await asyncio.sleep(every_s)
