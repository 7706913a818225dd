"""What the exchanges of all HTTP libraries share: the call is an ``Outgoing``, and redirects are watched."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from lightning_instrumentation.clients.outgoing import Outgoing
from lightning_instrumentation.clients.redirects import Redirects, following
from lightning_instrumentation.failures import guarded
from lightning_instrumentation.routing.exchange import Exchange


@dataclass(slots=True)
class Prepared:
    """A model call, ready to be sent."""

    out: Outgoing
    sent: Any
    """The request as it is sent, in the form that its library takes."""
    redirects: Redirects | None = None


class HttpExchange(Exchange):
    """One request of an HTTP library."""

    __slots__ = ("prepared", "request")

    layer = "http"

    def __init__(self, request: Any) -> None:
        self.request = request
        """The caller's request, in the form that its library takes."""
        self.prepared: Prepared

    @abstractmethod
    def prepare(self) -> Prepared | None:
        """Begin the call of the request; None if it is not a model call."""

    @abstractmethod
    def with_additions(self, out: Outgoing) -> Prepared:
        """Return the caller's request with what is added at hosts that the user named."""

    @abstractmethod
    def nothing_was_sent(self, error: BaseException) -> bool:
        """Whether the library's error means that it never had a connection."""

    @abstractmethod
    def headers(self) -> Mapping[str, str]:
        """Return the headers of the caller's request."""

    def begin(self) -> bool:
        prepared = self.prepare()
        if prepared is None:
            return False
        self.prepared = prepared
        self.routed = prepared.out.destination is not None
        return True

    def sending(self) -> AbstractContextManager[Any]:
        return following(self.prepared.redirects)

    def may_fall_back(self, error: BaseException) -> bool:
        return self.nothing_was_sent(error) and self.prepared.out.may_fall_back(self.headers())

    def fall_back(self, error: BaseException) -> None:
        out = self.prepared.out
        again = guarded("route-fallback", lambda: self.with_additions(out.fall_back(error)))
        self.prepared = again or Prepared(out, self.request)

    def failed(self, error: BaseException) -> None:
        self.prepared.out.failed(error)
