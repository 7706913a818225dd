"""The host names that the daemon answers to: a web page whose own name was made to point here (DNS rebinding) gets
nothing.

A browser sends the name it looked up as ``Host``. Loopback names, the configured host and the listed names are ours. If
the daemon listens on all addresses, so are any address and the machine's name: an address cannot be rebound, and such a
daemon requires a token. People are told one of these names (``public_name``).
"""

import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from lightning_trainer.config import DaemonConfig
from lightning_trainer.errors import ConfigError
from lightning_trainer.gateway.http_errors import shaped

VARIABLE = "LIGHTNING_DAEMON_TRUSTED_HOSTS"
"""Lists names, separated by commas, in addition to ``[daemon] trusted_hosts``: no file knows a container's name."""

_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
_ALL_ADDRESSES = frozenset(("0.0.0.0", "::"))


class TrustedHosts:
    """ASGI middleware that refuses requests for other hosts."""

    def __init__(self, app: ASGIApp, *, host: str, listed: Iterable[str] = ()) -> None:
        self._app = app
        self._any_address = host in _ALL_ADDRESSES
        own = {socket.gethostname().lower()} if self._any_address else {host.lower()}
        self._names = _LOOPBACK | own | {host_name(name) for name in listed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(given) != 1 or not self._trusted(host_name(given[0])):
                shown = given[0][:256] if given else None
                message = (
                    f"the request is for the host {shown!r}; if that is this daemon, list it in [daemon] trusted_hosts "
                    f"or {VARIABLE}"
                )
                await shaped(Request(scope), 421, message)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _trusted(self, name: str) -> bool:
        return name in self._names or (self._any_address and _is_address(name))


def hosts_of_environment() -> tuple[str, ...]:
    """Return the names that the environment lists.

    Raises:
        ConfigError: one of them is a URL.
    """
    names = tuple(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())
    for name in names:
        if "/" in name or not host_name(name):
            raise ConfigError(f"{VARIABLE} has {name!r}; write names of this machine, like gpu-box,10.0.0.7")
    return names


def public_name(config: DaemonConfig, certified: Sequence[str] = ()) -> str | None:
    """Return the name by which others call a daemon that listens on all addresses; None if ``host`` is its name.

    Args:
        certified: the names that its certificate is for; clients accept no others.

    Raises:
        ConfigError: the environment lists a URL.
    """
    if not config.all_addresses:
        return None
    own = [host_name(name) for name in (*config.trusted_hosts, *hosts_of_environment(), socket.gethostname())]
    certified = [name.lower() for name in certified if name.lower() not in _LOOPBACK and "*" not in name]
    return next((name for name in own if name in certified), None) or (*certified, *own)[0]


def host_name(header: str) -> str:
    """Return a Host header's name without port and brackets, in lower case."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
