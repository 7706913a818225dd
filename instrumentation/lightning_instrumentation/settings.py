"""What the client was told: arguments of ``lightning.init`` first, then the environment, then defaults."""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lightning_instrumentation.errors import ConfigurationError

DEFAULT_ENDPOINT = "http://127.0.0.1:8321"
DEFAULT_SPOOL_LIMIT_BYTES = 1 << 30
DEFAULT_MAX_BODY_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    endpoint: str
    """Base URL of the daemon; spans go to ``{endpoint}/v1/traces``."""
    token: str | None
    trusted_hosts: tuple[str, ...]
    spool_dir: Path
    """Spans that nobody has accepted yet wait here."""
    spool_limit_bytes: int
    service_name: str
    agent: str | None
    """Name for calls that nothing else names."""
    max_body_bytes: int
    """Longest request or answer that is read; longer ones are counted and not parsed."""
    capture_content: bool
    """False: no messages, tool arguments or results are recorded, only their shape."""
    route: bool = True
    """Whether calls of agents that a policy claims go to the daemon's gateway."""
    route_fallback: bool = True
    """Whether such a call goes to the user's own URL while the daemon is away, or fails."""


def default_spool_dir() -> Path:
    """``LIGHTNING_SPOOL_DIR``, else a folder in the XDG state directory."""
    named = os.environ.get("LIGHTNING_SPOOL_DIR")
    if named:
        return Path(named).expanduser()
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path("~/.local/state").expanduser()) / "lightning-trainer" / "spool"


def read_settings(
    endpoint: str | None,
    *,
    agent: str | None,
    service_name: str | None,
    token: str | None,
    trusted_hosts: Iterable[str],
    spool_dir: str | os.PathLike[str] | None,
    spool_limit_bytes: int,
    max_body_bytes: int | None,
    capture_content: bool,
    route: bool | None = None,
) -> Settings:
    """Raises ConfigurationError: a value that cannot be used, with the value and what to write instead."""
    endpoint = (endpoint or os.environ.get("LIGHTNING_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"the endpoint {endpoint!r} is not an http(s) URL; write it like {DEFAULT_ENDPOINT} "
            "in lightning.init(endpoint) or LIGHTNING_ENDPOINT"
        )
    if spool_limit_bytes <= 0:
        raise ConfigurationError(f"spool_limit_bytes is {spool_limit_bytes}; it must be positive")
    return Settings(
        endpoint=endpoint,
        token=token or os.environ.get("LIGHTNING_TOKEN") or None,
        trusted_hosts=(trusted_hosts,) if isinstance(trusted_hosts, str) else tuple(trusted_hosts),
        spool_dir=Path(spool_dir).expanduser() if spool_dir is not None else default_spool_dir(),
        spool_limit_bytes=spool_limit_bytes,
        service_name=service_name or os.environ.get("OTEL_SERVICE_NAME") or _program_name(),
        agent=agent,
        max_body_bytes=_max_body_bytes(max_body_bytes),
        capture_content=capture_content,
        route=_switch("LIGHTNING_ROUTE") if route is None else bool(route),
        route_fallback=_switch("LIGHTNING_ROUTE_FALLBACK"),
    )


def _max_body_bytes(given: int | None) -> int:
    named: object = given if given is not None else os.environ.get("LIGHTNING_MAX_BODY_BYTES") or DEFAULT_MAX_BODY_BYTES
    try:
        limit = int(str(named))
    except ValueError:
        limit = 0
    if limit <= 0:
        raise ConfigurationError(
            f"max_body_bytes is {named!r}; write a positive number of bytes in lightning.init(max_body_bytes) or "
            "LIGHTNING_MAX_BODY_BYTES"
        )
    return limit


def _switch(name: str) -> bool:
    """Return an environment variable as yes (also where it is not set) or no."""
    value = os.environ.get(name, "").strip().lower()
    if value in ("", "1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off"):
        return False
    raise ConfigurationError(f"{name} is {value!r}; write 1 or 0")


def _program_name() -> str:
    """Name of the script alone: the rest of a command line can hold secrets."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"
