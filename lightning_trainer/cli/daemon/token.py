"""``lightning-trainer token``: prints the daemon's token, for clients that do not find it by themselves."""

from pathlib import Path

from lightning_instrumentation.access.proof import NO_TOKEN

from lightning_trainer.cli.daemon.running_daemon import running_daemon
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.daemon.access.token import token_for_clients
from lightning_trainer.errors import ConfigError


def token(config_path: Path | None) -> None:
    """Print it alone, so that ``$(lightning-trainer token)`` is the token; ``none`` for a daemon without one.

    Raises:
        ConfigError: the configuration cannot be read, or no daemon was started with it yet.
    """
    config = load_usual_config(config_path)
    found = token_for_clients(config.daemon, running_daemon(config))
    if found is None and config.daemon.token != NO_TOKEN:
        raise ConfigError(
            f"there is no token in {config.daemon.state_dir} yet: the first `lightning-trainer serve` makes it"
        )
    print(found or NO_TOKEN)
