"""Where the daemon of a state folder is, for commands that ask it."""

import json

import psutil

from lightning_trainer.config import Config


def running_daemon(config: Config) -> str | None:
    """Return its URL, None where none runs; one that was killed left its announcement behind."""
    try:
        announced = json.loads((config.daemon.state_dir / "daemon.json").read_text())
        return announced["url"] if psutil.pid_exists(announced["pid"]) else None
    except (OSError, ValueError, KeyError):
        return None
