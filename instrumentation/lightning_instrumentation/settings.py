"""The client's settings: arguments of ``lt.init`` first, then the environment, then defaults."""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from re import Pattern
from typing import TypeAlias
from urllib.parse import urlsplit

from lightning_instrumentation.access.tls import ca_file_of_environment
from lightning_instrumentation.errors import ConfigurationError
from lightning_instrumentation.folders import named_path, state_folder

DEFAULT_ENDPOINT = "http://127.0.0.1:8321"
DEFAULT_SPOOL_LIMIT_BYTES = 1 << 30
DEFAULT_SPOOL_BLOCK_S = 5.0
DEFAULT_MAX_BODY_BYTES = 16 << 20
SPOOL_FULL = ("drop", "block")

RedactionRule: TypeAlias = str | Pattern[str] | Callable[[str], str]
"""``"keys"``, ``"emails"``, ``"regex:..."``, a compiled pattern, or a function from text to text."""

_ON = ("1", "true", "yes", "on")
OFF = ("0", "false", "no", "off")
"""How the environment may write that a switch is off."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the client."""

    endpoint: str
    """Base URL of the daemon; spans go to ``{endpoint}/v1/traces``."""
    token: str | None = field(repr=False)
    """The daemon's token, if it was set explicitly; None if it has to be found."""
    ca_file: Path | None
    """Certificates of the authorities that sign an https endpoint's certificate."""
    trusted_hosts: tuple[str, ...]
    spool_dir: Path
    """Spans that the daemon has not accepted yet wait here."""
    spool_limit_bytes: int
    service_name: str
    agent: str | None
    """Agent for calls for which nothing else names one."""
    max_body_bytes: int
    """Longest request or answer that is read; longer ones are counted and not parsed."""
    capture_content: bool
    """False: no messages, tool arguments or results are recorded, only their shape."""
    spool_full: str = "drop"
    """What happens to a new span if the spool is full: ``drop`` it, or ``block`` its thread until there is room."""
    spool_block_s: float = DEFAULT_SPOOL_BLOCK_S
    """Longest wait for room, in seconds; then the span is dropped after all."""
    redact: tuple[RedactionRule, ...] = ()
    """Rules in addition to the one for keys, which needs no naming; ``("none",)`` for no rules at all."""
    route: bool = True
    """Whether calls of agents that a policy claims go to the daemon's gateway."""
    route_fallback: bool = True
    """Whether such a call goes to the user's own URL while the daemon is down; if not, it fails."""


def checked_endpoint(endpoint: str | None) -> str:
    """Return the daemon's base URL, or the default.

    Raises:
        ConfigurationError: it is not an http(s) URL, or names a user; the message does not repeat a password in it.
    """
    # Spans go to /v1/traces and model calls to /v1 below it: a user who wrote one of these meant the daemon.
    endpoint = (endpoint or DEFAULT_ENDPOINT).rstrip("/").removesuffix("/v1/traces").removesuffix("/v1")
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if "@" in endpoint:  # an HTTP client would send it in place of the token, and every log would show it
        raise ConfigurationError(
            f"the endpoint names a user or a password; write it like {DEFAULT_ENDPOINT} and give the daemon's token "
            "alone, in lt.init(token=...) or LIGHTNING_TOKEN"
        )
    if not usable:
        raise ConfigurationError(
            f"the endpoint {endpoint!r} is not an http(s) URL; write it like {DEFAULT_ENDPOINT} "
            "in lt.init(endpoint), LIGHTNING_ENDPOINT or --endpoint"
        )
    return endpoint


def default_spool_dir() -> Path:
    """Return ``LIGHTNING_SPOOL_DIR``, else a folder in the XDG state directory."""
    return state_folder("spool", "LIGHTNING_SPOOL_DIR")


def read_settings(
    endpoint: str | None = None,
    *,
    agent: str | None = None,
    service_name: str | None = None,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    trusted_hosts: Iterable[str] = (),
    spool_dir: str | os.PathLike[str] | None = None,
    spool_limit_bytes: int | None = None,
    max_body_bytes: int | None = None,
    capture_content: bool | None = None,
    spool_full: str | None = None,
    spool_block_s: float | None = None,
    redact: RedactionRule | Iterable[RedactionRule] | None = None,
    route: bool | None = None,
) -> Settings:
    """Return the settings. Raises ConfigurationError for an invalid value; the message says what to write instead."""
    endpoint = checked_endpoint(endpoint or os.environ.get("LIGHTNING_ENDPOINT"))
    limit = _number("LIGHTNING_SPOOL_LIMIT_BYTES", spool_limit_bytes, DEFAULT_SPOOL_LIMIT_BYTES)
    if limit <= 0:
        raise ConfigurationError(f"spool_limit_bytes is {limit:g}; it must be positive")
    block_s = _number("LIGHTNING_SPOOL_BLOCK_S", spool_block_s, DEFAULT_SPOOL_BLOCK_S)
    if not 0 <= block_s <= 3600:
        raise ConfigurationError(f"spool_block_s is {block_s:g}; it is a number of seconds between 0 and 3600")
    full = spool_full or os.environ.get("LIGHTNING_SPOOL_FULL") or "drop"
    if full not in SPOOL_FULL:
        raise ConfigurationError(f"spool_full is {full!r}; write one of {', '.join(map(repr, SPOOL_FULL))}")
    return Settings(
        endpoint=endpoint,
        token=token or os.environ.get("LIGHTNING_TOKEN") or None,
        ca_file=named_path(ca_file, "ca_file") if ca_file is not None else ca_file_of_environment(),
        trusted_hosts=_hosts(trusted_hosts),
        spool_dir=named_path(spool_dir, "spool_dir") if spool_dir is not None else default_spool_dir(),
        spool_limit_bytes=int(limit),
        service_name=service_name or os.environ.get("OTEL_SERVICE_NAME") or _program_name(),
        agent=agent or os.environ.get("LIGHTNING_AGENT") or None,
        max_body_bytes=_max_body_bytes(max_body_bytes),
        capture_content=_switch("LIGHTNING_CAPTURE_CONTENT", capture_content, True),
        spool_full=full,
        spool_block_s=block_s,
        redact=_rules(redact),
        route=_switch("LIGHTNING_ROUTE", route, True),
        route_fallback=_switch("LIGHTNING_ROUTE_FALLBACK", None, True),
    )


def _number(variable: str, given: float | None, default: float) -> float:
    text = os.environ.get(variable) if given is None else None
    if not text:
        return default if given is None else given
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{variable} is {text!r}; it must be a number") from None


def _switch(variable: str, given: bool | None, default: bool) -> bool:
    text = os.environ.get(variable, "").strip().lower() if given is None else ""
    if not text:
        return default if given is None else given
    if text in _ON:
        return True
    if text in OFF:
        return False
    raise ConfigurationError(f"{variable} is {text!r}; write 1 or 0")


def _hosts(given: Iterable[str]) -> tuple[str, ...]:
    named = (given,) if isinstance(given, str) else tuple(given)
    return named or tuple(
        host.strip() for host in os.environ.get("LIGHTNING_TRUSTED_HOSTS", "").split(",") if host.strip()
    )


def _rules(given: RedactionRule | Iterable[RedactionRule] | None) -> tuple[RedactionRule, ...]:
    """Return the rules that are given, else those of the environment. A pattern may contain a comma, so in the
    environment it must be the only rule."""
    if given is None:
        text = os.environ.get("LIGHTNING_REDACT", "").strip()
        return (text,) if text.startswith("regex:") else tuple(name.strip() for name in text.split(",") if name.strip())
    if isinstance(given, (str, Pattern)) or callable(given):
        return (given,)
    return tuple(given)


def _max_body_bytes(given: int | None) -> int:
    named: object = given if given is not None else os.environ.get("LIGHTNING_MAX_BODY_BYTES") or DEFAULT_MAX_BODY_BYTES
    try:
        limit = int(str(named))
    except ValueError:
        limit = 0
    if limit <= 0:
        raise ConfigurationError(
            f"max_body_bytes is {named!r}; write a positive number of bytes in lt.init(max_body_bytes) or "
            "LIGHTNING_MAX_BODY_BYTES"
        )
    return limit


def _program_name() -> str:
    """Return only the script's name: the rest of a command line may contain secrets."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"
