"""The state folder is its owner's alone: prompts, answers and weights lie in it."""

import asyncio
import logging
import stat
import time
from pathlib import Path

from lightning_trainer.errors import ConfigError, StoreError
from lightning_trainer.store.store import Store

_log = logging.getLogger(__name__)


def close_to_others(folder: Path) -> None:
    """Make the folder, or take from an existing one what its group and others may do.

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


# Has the store delete what is too old or was used, a slice at a time; its size it keeps by itself.

_EVERY_S = 60.0
_REST = 4.0
"""Times as long as a slice took, until the next one: others write, too."""


async def keep_within_limits(store: Store, *, every_s: float = _EVERY_S) -> None:
    """For ever; a store that cannot be written is tried again."""
    while True:
        try:
            store.retention.begin_sweep()
            more = True
            while more:
                began = time.monotonic()
                more = await store.sweep()
                await asyncio.sleep(_REST * (time.monotonic() - began))
        except StoreError as error:
            _log.warning("nothing could be deleted from the store: %s", error)
        except Exception:
            _log.exception("nothing could be deleted from the store, for a reason that nobody has thought of")
        await asyncio.sleep(every_s)
