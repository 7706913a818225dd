"""Which hosts may be sent trace context and asked for token ids: those that the user named, no other (promise 11)."""

from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from lightning_instrumentation.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = frozenset({"localhost", LOOPBACK, "::1", "0.0.0.0"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


class HostTrust(Enum):
    DAEMON = "daemon"
    """The endpoint: gets trace context; its gateway records the tokens itself."""
    TRUSTED = "trusted"
    """Named by the user: gets trace context and is asked for token ids."""
    UNTRUSTED = "stranger"
    """Gets exactly what it would get without us."""


def canonical_host(host: str) -> str:
    """All names of the loopback interface are one host."""
    host = host.lower().strip("[]").rstrip(".")
    return LOOPBACK if host in _LOOPBACK_NAMES else host


@lru_cache(maxsize=256)
def address(url: str) -> tuple[str, int | None]:
    """Return host and port as a URL names them; ValueError where it cannot be read."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port


@lru_cache(maxsize=256)
def _place_of(url: str) -> tuple[str, int | None]:
    return _place(urlsplit(url))


def _place(parts: SplitResult) -> tuple[str, int | None]:
    return canonical_host(parts.hostname or ""), parts.port or _DEFAULT_PORTS.get(parts.scheme)


class Hosts:
    """``trusted`` entries are ``host`` (any port), ``host:port`` or a URL.

    Raises:
        ConfigurationError: an entry that is none of these.
    """

    def __init__(self, endpoint: str, trusted: Iterable[str] = ()) -> None:
        self._daemon = _place(urlsplit(endpoint))
        self._trusted: set[tuple[str, int | None]] = set()
        for entry in trusted:
            try:
                parts = urlsplit(entry if "//" in entry else f"//{entry}")
                place = _place(parts)
            except ValueError as error:
                raise ConfigurationError(f"trusted host {entry!r} cannot be read: {error}; write host:port") from error
            if not place[0]:
                raise ConfigurationError(f"trusted host {entry!r} names no host; write host:port")
            self._trusted.add(place)

    def trust(self, url: str) -> HostTrust:
        host, port = _place_of(url)
        if (host, port) == self._daemon:
            return HostTrust.DAEMON
        if (host, port) in self._trusted or (host, None) in self._trusted:
            return HostTrust.TRUSTED
        return HostTrust.UNTRUSTED
