"""The state folder is its owner's alone: prompts, answers and weights lie in it."""

import logging
import stat
from pathlib import Path

from lightning_trainer.errors import ConfigError

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
