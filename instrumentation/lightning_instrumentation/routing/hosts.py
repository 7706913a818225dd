"""Which hosts may get trace context and requests for token ids: only those that the user named (promise 11)."""

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache, partial
from urllib.parse import SplitResult, quote, urlsplit

from lightning_instrumentation import semconv
from lightning_instrumentation.errors import ConfigurationError
from lightning_instrumentation.scope import Agent, Identity
from lightning_instrumentation.spans.sequence import sequences

BAGGAGE = "baggage"
LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = frozenset({"localhost", LOOPBACK, "::1", "0.0.0.0", "::"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


class HostTrust(Enum):
    """What a host may be sent."""

    DAEMON = "daemon"
    """The endpoint: gets trace context; its gateway records the tokens itself."""
    TRUSTED = "trusted"
    """Named by the user: gets trace context and requests for token ids."""
    UNTRUSTED = "stranger"
    """Gets exactly what it would get without us."""


def canonical_host(host: str) -> str:
    """Map all names of the loopback interface to one host, and all spellings of an IPv6 address to one."""
    host = host.lower().strip("[]").rstrip(".")
    if ":" in host:
        host = _compressed(host)
    return LOOPBACK if host in _LOOPBACK_NAMES else host


def on_this_machine(url: str) -> bool:
    """Whether a URL is on loopback, which the environment's proxy cannot reach; raises ValueError if it is invalid."""
    return canonical_host(urlsplit(url).hostname or "") == LOOPBACK


def _compressed(host: str) -> str:
    from ipaddress import ip_address  # seldom needed

    try:
        return ip_address(host).compressed
    except ValueError:
        return host


@lru_cache(maxsize=256)
def address(url: str) -> tuple[str, int | None]:
    """Return host and port of a URL; raises ValueError if it is invalid."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port


@lru_cache(maxsize=256)
def _place_of(url: str) -> tuple[tuple[str, int | None], str]:
    parts = urlsplit(url)
    return _place(parts), parts.path


def _place(parts: SplitResult) -> tuple[str, int | None]:
    return canonical_host(parts.hostname or ""), parts.port or _DEFAULT_PORTS.get(parts.scheme)


class Hosts:
    """The trusted hosts; each entry is ``host`` (any port), ``host:port``, or a URL.

    Raises:
        ConfigurationError: an entry is none of these.
    """

    def __init__(self, endpoint: str, trusted: Iterable[str] = ()) -> None:
        parts = urlsplit(endpoint)
        self._daemon = _place(parts)
        self._below = parts.path.rstrip("/")
        """The daemon's path at a proxy, which may serve other programs, too."""
        self._trusted: set[tuple[str, int | None]] = set()
        for entry in trusted:
            try:
                parts = urlsplit(entry if "//" in entry else f"//{_bracketed(entry)}")
                place = _place(parts)
            except ValueError as error:
                raise ConfigurationError(f"trusted host {entry!r} cannot be read: {error}; write host:port") from error
            if not place[0]:
                raise ConfigurationError(f"trusted host {entry!r} names no host; write host:port")
            self._trusted.add(place)

    def trust(self, url: str) -> HostTrust:
        """Return what the host of a URL may be sent."""
        place, path = _place_of(url)
        if place == self._daemon and f"{path}/".startswith(f"{self._below}/"):
            return HostTrust.DAEMON
        if place in self._trusted or (place[0], None) in self._trusted:
            return HostTrust.TRUSTED
        return HostTrust.UNTRUSTED


def _bracketed(entry: str) -> str:
    """Return an entry as a URL has it: an IPv6 address without a port may be written without brackets."""
    return f"[{entry}]" if entry.count(":") > 1 and "[" not in entry else entry


# Trace context and identity as HTTP headers, for hosts that the user named.
#
# Source: W3C Trace Context (``traceparent``) and W3C Baggage; values are percent-encoded, so any id survives.

OURS = "x-lightning-"
"""Prefix of the headers that repeat both to the daemon, because an instrumentation of HTTP clients below our hooks,
such as OpenTelemetry's, replaces the originals."""
CAPTURE_CONTENT = f"{OURS}capture-content"
"""A header for the daemon only. A caller that records no texts sends ``0``, and the gateway then records its calls
without texts, too. It is not in the baggage, because baggage that is too long is ignored as a whole."""

LONGEST_VALUE = 1024
"""Characters of a baggage value that the gateway keeps."""
_LONGEST_BAGGAGE = 4096
"""In bytes: the most that W3C's propagators read of one member, and half of the most that they accept in a header."""

_quoted = lru_cache(maxsize=1024)(partial(quote, safe="", errors="replace"))


def traceparent(trace_id: int, span_id: int) -> str:
    """Return the header for a recorded span; all of ours are."""
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def baggage(identity: Identity | None, agent: Agent | None, state: str | None = None) -> str:
    """Return only our own baggage members; the user's are left alone.

    A task or group whose name is a long text is left out: the root span has both.
    """
    members = identity.attributes() if identity else {}
    if identity is not None and identity.attempt_id is not None:
        numbering = sequences.started(identity.attempt_id)
        if numbering is not None:
            # The gateway's record tells the daemon about spans that have not arrived yet, whichever process they are
            # from.
            members[semconv.SEQUENCE], members[semconv.SEQUENCE_STARTED] = numbering[0], str(numbering[1])
    if agent is not None:
        members[semconv.AGENT_NAME] = agent.name
    if state is not None:
        members[semconv.STATE] = state
    header = ""
    for key in semconv.GATEWAY_BAGGAGE_KEYS:
        if key in members and len(members[key]) <= LONGEST_VALUE:
            longer = f"{header},{key}={_quoted(members[key])}".lstrip(",")
            header = longer if len(longer) <= _LONGEST_BAGGAGE else header
    return header


def repeated(headers: Mapping[str, str]) -> dict[str, str]:
    """Return trace context and identity with their copies, for the daemon only."""
    return {**headers, **{f"{OURS}{name}": value for name, value in headers.items()}}


def choosing(*, capture_content: bool) -> dict[str, str]:
    """Return the header that tells the daemon to record no texts; no header if it may record them."""
    return {} if capture_content else {CAPTURE_CONTENT: "0"}


def added(headers: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """Return the headers to add to a request: those that it lacks and, for baggage, the user's members before ours.

    Args:
        present: the request's own headers, by names in lower case.
    """
    ours = {name: value for name, value in headers.items() if name not in present}
    if BAGGAGE in headers and (theirs := present.get(BAGGAGE)):
        ours[BAGGAGE] = f"{theirs},{headers[BAGGAGE]}"
    return ours
