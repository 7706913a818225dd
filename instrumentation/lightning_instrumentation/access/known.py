"""The access data that a daemon leaves for clients of the same user: its token and, with TLS, its certificate, in a
file that only the user can read.

There is one file per address (host and port), in ``LIGHTNING_ACCESS_DIR`` or a folder of the XDG state directory. It
stays when the daemon stops: a process that then takes the port does not know the token, so clients can tell that it is
not the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lightning_instrumentation.errors import ConfigurationError
from lightning_instrumentation.folders import state_folder
from lightning_instrumentation.routing.hosts import canonical_host

_SINCE_LATER = ("certificate", "daemon", "state_dir")
_LONGEST_FILE = 64 * 1024


@dataclass(frozen=True, slots=True)
class KnownDaemon:
    """The access data of a daemon."""

    token: str | None = None
    """None: the daemon requires none."""
    certificate: str | None = None
    """Its certificate, PEM; None for a daemon without TLS."""
    daemon: str | None = None
    """The daemon's id; None for an older version."""
    state_dir: str | None = None
    """The daemon's state folder, for display."""


def access_dir() -> Path:
    """Return the folder of the access files."""
    return state_folder("daemons", "LIGHTNING_ACCESS_DIR")


def remember(url: str, daemon: KnownDaemon) -> Path:
    """Save the access data of a daemon that listens at a URL.

    Raises:
        OSError: the folder or file cannot be written.
        ConfigurationError: this user has no home directory, and nothing names a folder.
    """
    path = _path(url)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(daemon), file)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return path


def known_daemon(url: str) -> KnownDaemon | None:
    """Return what is known about the daemon at a URL; None if nothing is, or if another user could have written it."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(_path(url), flags)
    except (OSError, ConfigurationError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not _is_ours(os.fstat(descriptor)):
            return None
        text = file.read(_LONGEST_FILE)
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        document = json.loads(text)
        found = KnownDaemon(document["token"], *(document.get(name) for name in _SINCE_LATER))
        if all(isinstance(value, str | None) for value in asdict(found).values()):
            return found
    return None


def _is_ours(status: os.stat_result) -> bool:
    mine = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return stat.S_ISREG(status.st_mode) and mine and not status.st_mode & 0o077


def _path(url: str) -> Path:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    host = canonical_host(parts.hostname or "").replace(":", ".").replace("/", ".")
    return access_dir() / f"{host}_{port}.json"
