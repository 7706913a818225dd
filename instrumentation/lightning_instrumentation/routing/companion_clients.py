"""Our own clients, one for each client object of the user's: they carry routed calls to the daemon's gateway.

They are separate clients, instead of the user's with another URL, so that whatever the user's client adds (keys,
default headers, cookies, hooks, proxies, and credentials) cannot reach the daemon. Each lives as long as the user's
client, so its connections end when those of the user's client do.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

_clients: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
_lock = threading.Lock()


def companion(client: Any, key: Hashable, make: Callable[[], Any], *, is_async: bool) -> Any:
    """Return our client, created at the first routed call; a client of one event loop serves only that loop.

    Args:
        key: what our client depends on, in addition to the user's client: the daemon and its token.
    """
    place = (_running_loop() if is_async else None, key)
    with _lock:
        made = _clients.setdefault(client, {})
        if place not in made:
            for gone in [other for other in made if other[0] is not None and other[0].is_closed()]:
                del made[gone]
            made[place] = make()
        return made[place]


def is_mocked(client: Any, url: Any) -> bool:
    """Whether a client of httpx or httpx2 gets its answers from a ``MockTransport``, as in a unit test of an agent.

    Args:
        url: the request's URL, as text or in the library's own type.
    """
    library = sys.modules.get(type(getattr(client, "base_url", None)).__module__.partition(".")[0])
    mock = getattr(library, "MockTransport", None)
    if library is None or mock is None:  # not a client of theirs
        return False
    transport = client._transport_for_url(library.URL(url)) if client._mounts else client._transport
    return isinstance(transport, mock)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # another library's event loop
        return None


def _forget_connections() -> None:
    """Drop the connections in a forked child, because they are the parent's."""
    global _lock
    _lock = threading.Lock()
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections)
