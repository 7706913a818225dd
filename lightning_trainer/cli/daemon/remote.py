"""How a command asks a daemon over HTTP: with the daemon's token, and with its refusals as sentences."""

import os
from pathlib import Path
from typing import Any

import httpx

from lightning_trainer.cli.daemon.running_daemon import client_at
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.access.token import token_for_clients
from lightning_trainer.errors import ConfigError, LightningError, StoreError
from lightning_trainer.rollouts.daemon_client import refusal


def named_client(url: str, config_path: Path | None, *, timeout_s: float = 60.0) -> httpx.Client:
    """Return a client for the daemon at the URL that a command or the environment names, once it has proven itself.

    The token is that of ``LIGHTNING_TOKEN``, else that of the configuration if one is named, else the one that the
    daemon has left for this user's programs.

    Raises:
        LightningError: the configuration cannot be read, something other than a daemon answers there, or nothing does.
    """
    token = os.environ.get("LIGHTNING_TOKEN") or None
    if token is None and config_path is not None:
        token = token_for_clients(load_config(config_path).daemon, url)
    return client_at(url, token, timeout_s=timeout_s)


def ask(
    url: str, client: httpx.Client, method: str, path: str, *, refused: type[LightningError] = StoreError, **sent: Any
) -> Any:
    """Return the document that a daemon answers with.

    Args:
        refused: what is raised if the daemon refuses.
        sent: as of ``httpx.Client.request``.

    Raises:
        LightningError: the daemon refuses, or does not answer.
    """
    try:
        answer = client.request(method, path, **sent)
        told = answer.json() if answer.is_success else None
    except (httpx.HTTPError, ValueError) as error:
        raise StoreError(f"the daemon at {url} did not answer ({type(error).__name__}: {error})") from error
    if told is None:
        raise refused(refusal(url, answer.status_code, answer.content))
    return told


def policy_there(url: str, client: httpx.Client, name: str | None) -> str:
    """Return the name of the policy that a command means: the given one, else the daemon's only one.

    Raises:
        LightningError: no name was given and there is none or several, or the daemon does not answer.
    """
    if name is not None:
        return name
    there = [*ask(url, client, "GET", "/lightning/status")["policies"]]
    if not there:
        raise ConfigError(f"the daemon at {url} has no policy: it only records")
    if len(there) > 1:
        raise ConfigError(f"name one of the policies {', '.join(there)} of the daemon at {url} with --policy")
    return there[0]
