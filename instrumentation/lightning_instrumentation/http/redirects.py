"""Redirects: a host that the user named may send a request on to one that nobody named (promise 11).

From the first such host on, the request is what it would be without us: our headers and fields are taken out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.wire.call import ModelCall, silence


class Redirects:
    """One request under way, to be asked about each place that it is sent on to.

    Args:
        headers: those of ours that it has, with their values.
        before: what the caller had under these names.
        own_body: makes the caller's body in the form that the library sends; None where nothing was added to it.
    """

    def __init__(
        self,
        call: ModelCall,
        headers: Mapping[str, str],
        before: Mapping[str, str],
        own_body: Callable[[], Any] | None,
    ) -> None:
        self._call = call
        self._headers = headers
        self._before = before
        self.own_body = own_body

    def must_leave_us(self, url: str, headers: MutableMapping[str, str]) -> bool:
        """Whether a request with these headers, on its way to ``url``, has to become the caller's own again.

        Then our headers are taken out here, and the library's hook replaces the body. A request of somebody else's
        (a token that the caller's authentication fetches on the way) has nothing of ours and is left alone.
        """
        if self._headers and not any(headers.get(name) == value for name, value in self._headers.items()):
            return False
        started = runtime()
        if started is not None and started.hosts.standing(url) is self._call.extras.standing:
            return False
        self.take_out(headers)
        self._call.asks_nothing()
        return True

    def take_out(self, headers: MutableMapping[str, str]) -> None:
        """Take our headers out; what the caller set stays, whatever its name."""
        for name, value in self._headers.items():
            if headers.get(name) != value:
                continue
            if name in self._before:
                headers[name] = self._before[name]
            else:
                del headers[name]


_under_way: ContextVar[Redirects | None] = ContextVar("lightning.redirects", default=None)


def under_way() -> Redirects | None:
    """What the redirects of the request that goes out here have to be asked; None where it carries nothing of ours."""
    return _under_way.get()


@contextmanager
def following(redirects: Redirects | None) -> Iterator[None]:
    """Inside the block, a request is sent and redirected; HTTP hooks further in see nothing."""
    before = _under_way.get()
    _under_way.set(redirects)
    try:
        with silence():
            yield
    finally:
        _under_way.set(before)
