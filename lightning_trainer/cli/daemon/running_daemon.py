"""Finds the daemon of a state folder, for commands that ask it."""

import http.client
import ssl
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from lightning_instrumentation.access.known import known_daemon
from lightning_instrumentation.access.proof import NO_TOKEN, Access
from lightning_instrumentation.access.tls import ca_file_of_environment
from lightning_instrumentation.errors import UnprovenDaemonError

from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.daemon.access.token import token_for_clients
from lightning_trainer.daemon.announcement import announced_url
from lightning_trainer.daemon.http.tls import certified_names, first_certificate
from lightning_trainer.daemon.http.trusted_hosts import public_name
from lightning_trainer.errors import ConfigError, LightningError, StoreError


def running_daemon(config: Config) -> str | None:
    """Return the URL of a configuration's daemon; None if none runs, even if a killed one left its announcement behind.

    Raises:
        StoreError: the state folder is another user's, so it is unknown whether a daemon runs.
    """
    return announced_url(config.daemon.state_dir / "daemon.json")


def visible_daemon(config: Config) -> str | None:
    """Return ``running_daemon``, but None for another user's folder: callers then use the configured address."""
    with suppress(StoreError):
        return running_daemon(config)
    return None


def url_for_others(config: Config) -> str:
    """Return the URL for people and for programs with clients of their own, whether the daemon runs or not.

    Raises:
        ConfigError: the environment names a host wrongly.
    """
    port = urlsplit(visible_daemon(config) or config.daemon.url()).port
    return config.daemon.url(port, name=public_name(config.daemon, certified_names(config.daemon)))


def daemon_client(url: str, config: Config, *, timeout_s: float = 30.0) -> httpx.Client:
    """Return a client for the daemon, once the daemon has proven itself.

    Raises:
        LightningError: something other than the daemon answers there, or nothing does.
    """
    access = daemon_access(url, config)
    headers = _headers(access)
    return httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False, verify=verified(access))


def async_daemon_client(url: str, config: Config, *, timeout_s: float = 30.0) -> httpx.AsyncClient:
    """Return an asynchronous client; otherwise as ``daemon_client``."""
    access = daemon_access(url, config)
    headers = _headers(access)
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s, trust_env=False, verify=verified(access))


def client_at(endpoint: str, token: str | None, *, timeout_s: float = 30.0) -> httpx.Client:
    """Return a client for a daemon that only a URL names, wherever it is, once the daemon has proven itself.

    Args:
        token: the daemon's; None for the one that it has left for this user's programs.

    Raises:
        LightningError: something other than the daemon answers there, or nothing does.
    """
    access = Access(endpoint, token, ca_file=ca_file_of_environment())
    headers = _headers(access, configured=False)
    return httpx.Client(base_url=endpoint, headers=headers, timeout=timeout_s, trust_env=False, verify=verified(access))


def daemon_access(url: str, config: Config) -> Access:
    """Return the access to a configuration's daemon: its token, and the certificate that it shows.

    Raises:
        ConfigError: what is stored is not a token, or the token is in a variable that is not set here.
    """
    token = token_for_clients(config.daemon, url)
    if token is None and known_daemon(url) is None:
        token = config.daemon.given_token()
    certificate = _certificate(config, url)
    # Expecting its own certificate is stricter than an authority, with which the address here would have to be in it.
    ca_file = ca_file_of_environment() if certificate is None else None
    return Access(url, token or NO_TOKEN, ca_file=ca_file, certificate=certificate)


def verified(access: Access) -> ssl.SSLContext | bool:
    """Return what an HTTP client verifies the daemon's certificate with, once the access was ``opened``."""
    return False if access.verified_by is None else access.verified_by


def _certificate(config: Config, url: str) -> str | None:
    """Return the certificates that a daemon of this configuration may show, as far as they can be read here: it shows a
    new one only after up to a minute."""
    known = known_daemon(url)
    found = "" if known is None else known.certificate or ""
    with suppress(OSError, ValueError):
        found += "" if config.daemon.tls_cert is None else first_certificate(config.daemon.tls_cert.read_text())
    return found or None


def _headers(access: Access, *, configured: bool = True) -> dict[str, str]:
    """Return the headers that give access to the daemon, once it has proven itself.

    Args:
        configured: the token is the configuration's, not the environment's.

    Raises:
        LightningError: something other than the daemon answers there, or nothing does.
    """
    try:
        return access.headers()
    except UnprovenDaemonError as error:
        if error.other_token and configured:
            # The error advises to set LIGHTNING_TOKEN, which these commands do not read.
            raise LightningError(
                f"the daemon at {access.endpoint} has another token than [daemon] of its configuration here: if that "
                "was changed, restart the daemon, which has the one that it was started with"
            ) from error
        raise LightningError(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        said = f"the daemon at {access.endpoint} did not answer ({type(error).__name__}: {error})"
        raise LightningError(said) from error


# ``lightning-trainer token``: prints the daemon's token, for clients that do not find it by themselves.


def token(config_path: Path | None) -> None:
    """Print the token alone, so that ``$(lightning-trainer token)`` is the token; ``none`` for a daemon without one.

    Raises:
        ConfigError: the configuration cannot be read, or no daemon has been started with it yet.
        StoreError: the state folder is another user's.
    """
    config = load_usual_config(config_path)
    found = token_for_clients(config.daemon, running_daemon(config))
    if found is None and config.daemon.given_token() != NO_TOKEN:
        raise ConfigError(
            f"there is no token in {config.daemon.state_dir} yet: the first `lightning-trainer serve` makes it"
        )
    print(found or NO_TOKEN)
