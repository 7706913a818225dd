"""Folders of this user: those that a variable or argument names, and those in the XDG state directory.

Source: XDG Base Directory Specification. A user without a home directory (as in a container that runs under an
arbitrary user id, without ``HOME``) has to name the folders.
"""

import os
from pathlib import Path

from lightning_instrumentation.errors import ConfigurationError


def named_path(path: str | os.PathLike[str], named_by: str) -> Path:
    """Return the path that an argument or a variable names, with ``~`` for a home directory.

    Raises:
        ConfigurationError: there is no such home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigurationError(
            f"{named_by} is {os.fspath(path)!r}, and there is no such home directory; write the path from / on"
        ) from None


def state_folder(name: str, variable: str) -> Path:
    """Return the folder that an environment variable names, else the folder ``name`` in the state directory.

    Raises:
        ConfigurationError: this user has no home directory, and nothing names a folder.
    """
    if named := os.environ.get(variable):
        return named_path(named, variable)
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:
        user = f"user {os.getuid()}" if hasattr(os, "getuid") else "this user"
        raise ConfigurationError(
            f"{user} has no home directory, in which lightning would keep files until they are delivered; "
            f"set {'HOME' if hasattr(os, 'getuid') else 'USERPROFILE'} or XDG_STATE_HOME, or {variable} to a folder"
        ) from None
    return state / "lightning-trainer" / name
