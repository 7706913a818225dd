"""Route, fall back, answer: what a hook does with one request of its library, written once for every library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.routing.edge import Edge


class Exchange(ABC):
    """One request of a client library and its answer; a subclass for each library says how to do each step."""

    __slots__ = ("routed",)

    layer: ClassVar[str]
    """Failures in a hook are counted under ``<layer>-request`` and ``<layer>-response``."""

    routed: bool
    """Whether the next ``send`` goes to the gateway. ``begin`` sets this, and a fallback resets it."""

    @abstractmethod
    def edge(self) -> Edge | None:
        """Return the edge of a model call; None for any other request."""

    @abstractmethod
    def begin(self) -> bool:
        """Begin the call, with its span; return False if the request is not recorded, and is sent unchanged."""

    @abstractmethod
    def send(self) -> Any:
        """Send the begun call to its destination. Here and below, an asynchronous library returns an awaitable."""

    @abstractmethod
    def send_unchanged(self) -> Any:
        """Send the caller's request unchanged."""

    @abstractmethod
    def sending(self) -> AbstractContextManager[Any]:
        """Return a context manager for ``send``, in which other libraries' hooks know that the request is this one."""

    @abstractmethod
    def may_fall_back(self, error: BaseException) -> bool:
        """Whether a routed call that ended with this error goes to the caller's own host: the daemon is down, nothing
        was sent, and the settings allow it."""

    @abstractmethod
    def fall_back(self, error: BaseException) -> None:
        """Make the next ``send`` go to the caller's own host, with nothing added if preparing it fails."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """End the call with an error."""

    @abstractmethod
    def answered(self, response: Any) -> None:
        """Read the answer, or watch it being read, and end the call."""

    def goes_on(self, error: BaseException) -> bool:
        """Whether the call must be sent once more, now to the caller's own host; if not, end it with the error."""
        if self.routed and self.may_fall_back(error):
            self.routed = False
            self.fall_back(error)
            return True
        self.failed(error)
        return False


def exchange(request: Exchange) -> Any:
    """Send a request, and return its answer.

    Raises:
        BaseException: whatever the library raises; its connection error for a call that must not be sent anywhere.
    """
    edge = guarded(f"{request.layer}-request", request.edge)
    if edge is None:
        return request.send_unchanged()
    with edge:
        begun = guarded(f"{request.layer}-request", request.begin)
    if not begun:
        return request.send_unchanged()
    while True:
        try:
            with request.sending():
                response = request.send()
            break
        except BaseException as error:
            if not request.goes_on(error):
                raise
    guarded(f"{request.layer}-response", request.answered, response)
    return response


async def exchange_async(request: Exchange) -> Any:
    """Do as ``exchange`` does, for a library whose requests are awaited."""
    edge = guarded(f"{request.layer}-request", request.edge)
    if edge is None:
        return await request.send_unchanged()
    async with edge:
        begun = guarded(f"{request.layer}-request", request.begin)
    if not begun:
        return await request.send_unchanged()
    while True:
        try:
            with request.sending():
                response = await request.send()
            break
        except BaseException as error:
            if not request.goes_on(error):
                raise
    guarded(f"{request.layer}-response", request.answered, response)
    return response
