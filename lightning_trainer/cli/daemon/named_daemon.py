"""Which daemon a command asks if the environment names one: ``LIGHTNING_ENDPOINT`` is exported once for a shell, so
what the command itself names takes precedence.
"""

import os
import shlex
import socket
from pathlib import Path
from urllib.parse import urlsplit

import typer
from lightning_instrumentation.routing.hosts import canonical_host
from lightning_instrumentation.settings import checked_endpoint

from lightning_trainer.config.file import USUAL_CONFIG, load_usual_config

_PATIENCE_S = 1.0
_PORTS = {"http": 80, "https": 443}


def named_endpoint(context: typer.Context, endpoint: str | None, config_path: Path | None) -> str | None:
    """Return the endpoint to ask; None if only the environment names one and the command names a configuration."""
    return None if config_path is not None and _is_of_environment(context) else endpoint


def named_endpoint_or_store(context: typer.Context, endpoint: str | None, config_path: Path | None) -> str | None:
    """Return ``named_endpoint`` for a command that needs no daemon; also None if the environment names the usual
    configuration's own daemon and that is stopped, so that its store is used.

    Raises:
        ConfigurationError: the endpoint is not a URL.
        ConfigError: the configuration cannot be read.
    """
    named = named_endpoint(context, endpoint, config_path)
    if named is None or not _is_of_environment(context):
        return named
    return None if _is_stopped_here(checked_endpoint(named)) else named


def option_of(endpoint: str | None, config_path: Path | None) -> str:
    """Return the options with which a suggested command asks the same daemon; empty if the environment names it."""
    config = "" if config_path is None else f" --config {shlex.quote(str(config_path))}"
    of_environment = not config and endpoint == os.environ.get("LIGHTNING_ENDPOINT")
    return config if endpoint is None or of_environment else f"{config} --endpoint {endpoint}"


def _is_of_environment(context: typer.Context) -> bool:
    source = context.get_parameter_source("endpoint")
    return source is not None and source.name == "ENVIRONMENT"


def _is_stopped_here(endpoint: str) -> bool:
    """Whether the endpoint is where the usual configuration's daemon would listen, and nothing listens there."""
    host, port = _place(endpoint)
    try:
        socket.create_connection((host, port), _PATIENCE_S).close()
        return False
    except ConnectionRefusedError:
        pass
    except OSError:
        return False
    daemon = load_usual_config(None).daemon
    is_known = USUAL_CONFIG.exists() or daemon.state_dir.exists()
    return is_known and (host, port) == _place(daemon.url())


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return canonical_host(parts.hostname or ""), parts.port or _PORTS.get(parts.scheme, 0)
