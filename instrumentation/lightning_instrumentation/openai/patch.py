"""The hook in the openai client: its ``request`` method.

``request`` and not ``post``: resources keep a bound ``post`` from their creation, which may precede our first line;
``request`` is looked up at every call. Retries happen inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.gateway.edge import Edge
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.openai import call as openai_call
from lightning_instrumentation.openai.gateway import DaemonAwayError
from lightning_instrumentation.openai.route import Route
from lightning_instrumentation.runtime import running
from lightning_instrumentation.wire.call import ModelCall, carrying


def wrap_client(module: Any) -> None:
    """Hook of the openai client."""
    patching.wrap(module, "SyncAPIClient.request", _request)
    patching.wrap(module, "AsyncAPIClient.request", _async_request)
    # The program's own `lt.init` may follow: an import does not start the client with the environment's settings.
    started = running()
    if started is not None:
        started.router.keep_fresh()  # model calls are likely from here on


def _edge(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Edge | None:
    return openai_call.edge_of(instance, _options(args, kwargs))


def _options(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("options")


def _begin(
    instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any], url: str
) -> tuple[ModelCall, Route | None, tuple[Any, ...], dict[str, Any]] | None:
    begun = openai_call.begin(instance, _options(args, kwargs), url)
    if begun is None:
        return None
    call, options, route = begun
    return call, route, *_asking(options, args, kwargs)


def _asking(options: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of ``request`` with other options."""
    if len(args) > 1:
        return (args[0], options, *args[2:]), kwargs
    return args, {**kwargs, "options": options}


def _request(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    edge = guarded("chat-request", _edge, instance, args, kwargs)
    if edge is None:
        return wrapped(*args, **kwargs)
    with edge:
        begun = guarded("chat-request", _begin, instance, args, kwargs, edge.url)
    if begun is None:
        return wrapped(*args, **kwargs)
    call, route, args, kwargs = begun
    try:
        with carrying(call):
            response = _send(wrapped, call, route, args, kwargs)
    except BaseException as error:
        call.failed(error)
        raise
    guarded("chat-response", openai_call.answered, call)
    return response


def _send(
    wrapped: Callable[..., Any],
    call: ModelCall,
    route: Route | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Send a call to its destination; a routed one whose daemon is down goes where it always went."""
    if route is not None:
        try:
            return _of(wrapped, route.client)(*args, **kwargs)
        except DaemonAwayError as away:
            args, kwargs = _asking(openai_call.fall_back(call, route, away), args, kwargs)
    return wrapped(*args, **kwargs)


def _of(wrapped: Callable[..., Any], client: Any) -> Callable[..., Any]:
    """Return the method of another client. Looked up on that client, it would run through our wrappers twice."""
    # Called through its class, as some wrappers do, it is wrapt's partial of a function and not a bound method.
    function = getattr(wrapped, "__func__", None) or getattr(wrapped, "__wrapped__", None)
    return client.request if function is None else partial(function, client)


async def _async_send(
    wrapped: Callable[..., Any],
    call: ModelCall,
    route: Route | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if route is not None:
        try:
            return await _of(wrapped, route.client)(*args, **kwargs)
        except DaemonAwayError as away:
            args, kwargs = _asking(openai_call.fall_back(call, route, away), args, kwargs)
    return await wrapped(*args, **kwargs)


async def _async_request(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    edge = guarded("chat-request", _edge, instance, args, kwargs)
    if edge is None:
        return await wrapped(*args, **kwargs)
    async with edge:
        begun = guarded("chat-request", _begin, instance, args, kwargs, edge.url)
    if begun is None:
        return await wrapped(*args, **kwargs)
    call, route, args, kwargs = begun
    try:
        with carrying(call):
            response = await _async_send(wrapped, call, route, args, kwargs)
    except BaseException as error:
        call.failed(error)
        raise
    guarded("chat-response", openai_call.answered, call)
    return response
