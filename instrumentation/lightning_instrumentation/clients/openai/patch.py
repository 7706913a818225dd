"""The hook in the openai client: its ``request`` method.

The hook is in ``request`` and not in ``post``: resources bind ``post`` when they are created, perhaps before our first
line, whereas ``request`` is looked up at every call. Retries happen inside ``request``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from lightning_instrumentation.clients.openai import call as openai_call
from lightning_instrumentation.clients.openai.gateway import DaemonAwayError
from lightning_instrumentation.clients.openai.route import Route
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.routing.edge import Edge
from lightning_instrumentation.routing.exchange import Exchange, exchange, exchange_async
from lightning_instrumentation.runtime import running
from lightning_instrumentation.wire.call import ModelCall, carrying


def wrap_client(module: Any) -> None:
    """Hook of the openai client."""
    patching.wrap(module, "SyncAPIClient.request", _request)
    patching.wrap(module, "AsyncAPIClient.request", _async_request)
    # The program's own `lt.init` may still follow, so an import must not start us with the environment's settings.
    started = running()
    if started is not None:
        started.router.keep_fresh()  # model calls are likely from here on


def _request(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return exchange(_OpenAIExchange(instance, wrapped, args, kwargs))


async def _async_request(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return await exchange_async(_OpenAIExchange(instance, wrapped, args, kwargs))


class _OpenAIExchange(Exchange):
    __slots__ = ("args", "call", "client", "kwargs", "options", "route", "url", "wrapped")

    layer = "chat"

    def __init__(self, client: Any, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.client = client
        self.wrapped = wrapped
        self.args = args
        self.kwargs = kwargs
        self.options = args[1] if len(args) > 1 else kwargs.get("options")
        self.url = ""
        self.call: ModelCall
        self.route: Route | None = None

    def edge(self) -> Edge | None:
        edge = openai_call.edge_of(self.client, self.options)
        if edge is not None:
            self.url = edge.url
        return edge

    def begin(self) -> bool:
        begun = openai_call.begin(self.client, self.options, self.url)
        if begun is None:
            return False
        self.call, self.options, self.route = begun
        self.routed = self.route is not None
        return True

    def send(self) -> Any:
        if self.routed and self.route is not None:
            return self._asked(_of(self.wrapped, self.route.client))
        return self._asked(self.wrapped)

    def _asked(self, request: Callable[..., Any]) -> Any:
        if len(self.args) > 1:
            return request(self.args[0], self.options, *self.args[2:], **self.kwargs)
        return request(*self.args, **{**self.kwargs, "options": self.options})

    def send_unchanged(self) -> Any:
        return self.wrapped(*self.args, **self.kwargs)

    def sending(self) -> AbstractContextManager[Any]:
        return carrying(self.call)

    def may_fall_back(self, error: BaseException) -> bool:
        return isinstance(error, DaemonAwayError)  # our client has checked the settings

    def fall_back(self, error: BaseException) -> None:
        if self.route is not None:
            self.options = openai_call.fall_back(self.call, self.route, error)

    def failed(self, error: BaseException) -> None:
        self.call.failed(error)

    def answered(self, response: Any) -> None:
        openai_call.answered(self.call)


def _of(wrapped: Callable[..., Any], client: Any) -> Callable[..., Any]:
    """Return the wrapped method, bound to another client; looking it up on that client would run our hook twice."""
    # If it was called through its class, as some wrappers do, it is wrapt's partial of a function, not a bound method.
    function = getattr(wrapped, "__func__", None) or getattr(wrapped, "__wrapped__", None)
    return client.request if function is None else partial(function, client)
