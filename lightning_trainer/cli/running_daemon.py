"""Where the daemon of a state folder is, for commands that ask it."""

import json

import httpx
import psutil

from lightning_trainer.config import Config


def running_daemon(config: Config) -> str | None:
    """Return its URL, None where none runs; one that was killed left its announcement behind."""
    try:
        announced = json.loads((config.daemon.state_dir / "daemon.json").read_text())
        return announced["url"] if psutil.pid_exists(announced["pid"]) else None
    except (OSError, ValueError, KeyError):
        return None


def daemon_client(url: str, config: Config, *, timeout_s: float = 30.0) -> httpx.Client:
    """Return what asks it, with its token."""
    headers = {} if config.daemon.token is None else {"authorization": f"Bearer {config.daemon.token}"}
    return httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False)
