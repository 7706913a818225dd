"""The common base of all HTTP libraries' exchanges: the call is an ``Outgoing``, and redirects are watched."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
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
        """Begin the call that the request makes, and return it; None if it is not a model call."""

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


class SendExchange(HttpExchange):
    """One request of a library whose hook is in a client's ``send(request, ...)``."""

    __slots__ = ("args", "client", "kwargs", "wrapped")

    def __init__(self, client: Any, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(args[0] if args else kwargs.get("request"))
        self.client = client
        self.wrapped = wrapped
        self.args = args
        self.kwargs = kwargs

    @abstractmethod
    def send_to_gateway(self) -> Any:
        """Send the prepared request with a client of ours."""

    def send(self) -> Any:
        if self.routed:
            return self.send_to_gateway()
        if self.args:
            return self.wrapped(self.prepared.sent, *self.args[1:], **self.kwargs)
        return self.wrapped(**{**self.kwargs, "request": self.prepared.sent})

    def send_unchanged(self) -> Any:
        return self.wrapped(*self.args, **self.kwargs)

    def headers(self) -> Mapping[str, str]:
        return self.request.headers
