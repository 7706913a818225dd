"""Where the daemon of a state folder is, for commands that ask it."""

import http.client
import json

import httpx
import psutil
from lightning_instrumentation.access.proof import NO_TOKEN, Access

from lightning_trainer.config import Config
from lightning_trainer.daemon.access.token import token_for_clients
from lightning_trainer.errors import LightningError


def running_daemon(config: Config) -> str | None:
    """Return its URL, None where none runs; one that was killed left its announcement behind."""
    try:
        announced = json.loads((config.daemon.state_dir / "daemon.json").read_text())
        return announced["url"] if psutil.pid_exists(announced["pid"]) else None
    except (OSError, ValueError, KeyError):
        return None


def daemon_client(url: str, config: Config, *, timeout_s: float = 30.0) -> httpx.Client:
    """Return what asks it, after it has proven itself.

    Raises:
        LightningError: what answers there is not the daemon, or nobody answers.
    """
    headers = daemon_headers(url, config)
    return httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False)


def daemon_headers(url: str, config: Config) -> dict[str, str]:
    """Return what opens the daemon at a URL, after it has proven itself.

    Raises:
        LightningError: what answers there is not the daemon, or nobody answers.
    """
    try:
        return Access(url, token_for_clients(config.daemon, url) or NO_TOKEN).headers()
    except (OSError, http.client.HTTPException) as error:
        raise LightningError(f"the daemon at {url} did not answer ({type(error).__name__}: {error})") from error
