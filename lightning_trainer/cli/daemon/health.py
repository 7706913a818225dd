"""``lightning-trainer health``: what the check of a container or a person asks, with the daemon's address and token."""

from pathlib import Path

import httpx

from lightning_trainer.cli.daemon.running_daemon import daemon_client, running_daemon
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.errors import LightningError


def health(config_path: Path | None, *, ready: bool, timeout_s: float) -> int:
    """Print one line and return the exit status: 0 when the daemon answers (``ready``: and everything in it works).

    Raises:
        ConfigError: the configuration cannot be read.
    """
    config = load_usual_config(config_path)
    url = running_daemon(config)
    if url is None:
        print(f"no daemon runs on {config.daemon.state_dir}")
        return 1
    try:
        with daemon_client(url, config, timeout_s=timeout_s) as client:
            answer = client.get("/readyz" if ready else "/healthz")
    except httpx.HTTPError as error:
        print(f"the daemon at {url} did not answer ({type(error).__name__}: {error})")
        return 1
    except LightningError as error:  # what answers there is another program, or hangs
        print(error)
        return 1
    print(answer.text)
    return 0 if answer.is_success else 1
