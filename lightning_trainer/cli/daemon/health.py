"""``lightning-trainer health``: the check for a container or a person, with the daemon's address and token."""

from functools import partial
from pathlib import Path

import httpx
from lightning_instrumentation.settings import checked_endpoint

from lightning_trainer.cli.daemon.remote import named_client
from lightning_trainer.cli.daemon.running_daemon import daemon_client, running_daemon
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.errors import LightningError


def health(config_path: Path | None, *, ready: bool, timeout_s: float, endpoint: str | None = None) -> int:
    """Print one line and return the exit status: 0 if the daemon answers and, with ``ready``, everything in it works.

    Args:
        endpoint: URL of the daemon to ask; None: the configuration's daemon.

    Raises:
        ConfigError: the configuration cannot be read.
        ConfigurationError: the endpoint is not a URL.
    """
    if endpoint is not None:
        url = checked_endpoint(endpoint)
        connect = partial(named_client, url, config_path)
    else:
        config = load_usual_config(config_path)
        try:
            url = running_daemon(config)
        except LightningError as error:  # another user's folder: unknown whether one runs
            print(error)
            return 1
        if url is None:
            print(f"no daemon runs on {config.daemon.state_dir}")
            return 1
        connect = partial(daemon_client, url, config)
    try:
        with connect(timeout_s=timeout_s) as client:
            answer = client.get("/readyz" if ready else "/healthz")
    except httpx.HTTPError as error:
        print(f"the daemon at {url} did not answer ({type(error).__name__}: {error})")
        return 1
    except LightningError as error:  # another program answers there, or it hangs
        print(error)
        return 1
    print(answer.text)
    return 0 if answer.is_success else 1
