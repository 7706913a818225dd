"""The daemon's token: the configuration's, or one that is made at the first start and kept in the state folder.

With ``none`` in the configuration the daemon has no token. Commands find the token in the same places, or where the
daemon left it for this user's clients, so they do not need the variable that ``token_env`` names.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

from lightning_instrumentation.access.known import KnownDaemon, known_daemon, remember
from lightning_instrumentation.access.proof import NO_TOKEN
from lightning_instrumentation.errors import ConfigurationError

from lightning_trainer.config import DaemonConfig
from lightning_trainer.daemon.state_folder import anothers, kept_once
from lightning_trainer.errors import ConfigError

_log = logging.getLogger(__name__)
_FILE = "token"
_OF_CLIENTS = "LIGHTNING_TOKEN"
_BYTES = 32


def token_of_daemon(config: DaemonConfig) -> str | None:
    """Return the token, made now if this is the first start; None for a daemon without one.

    Raises:
        ConfigError: the token cannot be kept, or the one that is kept or in the environment is not a token.
    """
    given = config.given_token()
    token = given or _checked(config, kept_once(config.state_dir / _FILE, "the daemon's token", _made))
    if (os.environ.get(_OF_CLIENTS) or token) != token:
        _log.warning(
            "%s is set and is not this daemon's token: programs that send it are refused; to make it the token, write "
            'token_env = "%s" in [daemon]',
            *(_OF_CLIENTS, _OF_CLIENTS),
        )
    return None if token == NO_TOKEN else token


def token_for_clients(config: DaemonConfig, url: str | None = None) -> str | None:
    """Return the token that a command needs; None if there is none, or none that is known here.

    Args:
        url: where the daemon runs, if that is known.

    Raises:
        ConfigError: what is kept or in the environment is not a token, or is another user's.
    """
    if config.token is not None or os.environ.get(config.token_env or ""):
        given = config.given_token()
        return None if given == NO_TOKEN else given
    path = config.state_dir / _FILE
    try:
        kept = config.token_env is None and path.is_file()
    except PermissionError as error:
        raise ConfigError(anothers(config.state_dir)) from error
    if kept:
        return _checked(config, kept_once(path, "the daemon's token", _made))
    known = known_daemon(url or config.url())
    return None if known is None else known.token


@contextlib.contextmanager
def told_to_clients(urls: Collection[str], daemon: KnownDaemon, *, lasting: bool) -> Iterator[Callable[[str], None]]:
    """Leave the daemon's access data for this user's clients; yield a function that updates the certificate in them.

    Args:
        urls: all of the daemon's.
        lasting: whether the data stays when the daemon stops, since the daemon comes back to this address.
    """
    paths: set[Path] = set()

    def tell(certificate: str | None) -> None:
        try:
            paths.update(remember(url, replace(daemon, certificate=certificate)) for url in urls)
        except (OSError, ConfigurationError) as error:
            _log.warning("clients have to be told the daemon's token (LIGHTNING_TOKEN): %s", error)

    tell(daemon.certificate)
    if daemon.token is None:
        _log.warning(
            'token = "none" in [daemon]: everybody who can reach %s may read what is recorded, reward and roll back',
            ", ".join(urls),
        )
    try:
        yield tell
    finally:
        for path in () if lasting else paths:
            path.unlink(missing_ok=True)


def _made() -> str:
    return secrets.token_urlsafe(_BYTES)


def _checked(config: DaemonConfig, token: str) -> str:
    if len(token) < 16:
        path = config.state_dir / _FILE
        raise ConfigError(f"{path} holds no token of 16+ characters: delete it, and the next start makes another")
    return token
