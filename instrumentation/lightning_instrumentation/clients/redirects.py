"""Redirects: a host that the user named may redirect to one that the user did not name (promise 11).

From the first such host on, the request is what it would be without us: our headers and fields are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.wire.call import ModelCall, silence


class Redirects:
    """One request in flight, consulted at each redirect.

    Redirects are rare and reading a library's headers is slow, so the headers are read only at a redirect.

    Args:
        sent: the request's headers.
        before: the caller's headers, some of which ours may have replaced.
        own_body: returns the caller's body in the form that the library sends; None if nothing was added to it.
    """

    def __init__(
        self,
        call: ModelCall,
        sent: Mapping[str, str],
        before: Mapping[str, str],
        own_body: Callable[[], Any] | None,
    ) -> None:
        self._call = call
        self._added = call.extras.headers
        self._sent = sent
        self._callers = before
        self.own_body = own_body

    @cached_property
    def _headers(self) -> Mapping[str, str]:
        """Return our headers in the request, with their values."""
        return {name: value for name, value in self._added.items() if self._sent.get(name) == value}

    @cached_property
    def _before(self) -> Mapping[str, str]:
        """Return the caller's values for these names."""
        callers = self._callers
        return {name: callers[name] for name, ours in self._headers.items() if callers.get(name) not in (None, ours)}

    def must_leave_us(self, url: str, headers: MutableMapping[str, str]) -> bool:
        """Whether a request with these headers, on its way to ``url``, must become the caller's own again.

        If so, our headers are removed here, and the library's hook replaces the body. Other requests (such as that with
        which the caller's authentication fetches a token) contain nothing of ours and are left alone.
        """
        if self._headers and not any(headers.get(name) == value for name, value in self._headers.items()):
            return False
        started = runtime()
        if started is not None and started.hosts.trust(url) is self._call.extras.trust:
            return False
        self.take_out(headers)
        self._call.asks_nothing()
        return True

    def take_out(self, headers: MutableMapping[str, str]) -> None:
        """Remove our headers; what the caller set stays, whatever its name."""
        for name, value in self._headers.items():
            if headers.get(name) != value:
                continue
            if name in self._before:
                headers[name] = self._before[name]
            else:
                del headers[name]


_under_way: ContextVar[Redirects | None] = ContextVar("lightning.redirects", default=None)


def under_way() -> Redirects | None:
    """Return the redirects of the current request; None if it carries nothing of ours."""
    return _under_way.get()


def following(redirects: Redirects | None) -> Any:
    """Return the context manager in which a request is sent and redirected; inner HTTP hooks ignore it there.

    Args:
        redirects: None if there is nothing to remove at a redirect.
    """
    return silence() if redirects is None else _following(redirects)


class _following:
    __slots__ = ("_before", "_redirects", "_silence")

    def __init__(self, redirects: Redirects) -> None:
        self._redirects = redirects
        self._before: Redirects | None = None
        self._silence = silence()

    def __enter__(self) -> None:
        self._before = _under_way.get()
        _under_way.set(self._redirects)
        self._silence.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._silence.__exit__(*raised)
        _under_way.set(self._before)
