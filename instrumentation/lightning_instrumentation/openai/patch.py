"""The hook in the openai client: its ``request`` method.

``request`` and not ``post``: resources keep a bound ``post`` from the moment when they were made, which may be before
the first line of ours ran; ``request`` is looked up at every call. Retries happen inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.openai import call as openai_call
from lightning_instrumentation.wire.call import carrying


def wrap_client(module: Any) -> None:
    wrapt.wrap_function_wrapper(module, "SyncAPIClient.request", _request)
    wrapt.wrap_function_wrapper(module, "AsyncAPIClient.request", _async_request)


def _begin(
    instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    options = args[1] if len(args) > 1 else kwargs.get("options")
    begun = openai_call.begin(instance, options)
    if begun is None:
        return None
    call, options = begun
    if len(args) > 1:
        return call, (args[0], options, *args[2:]), kwargs
    return call, args, {**kwargs, "options": options}


def _request(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    begun = guarded("chat-request", _begin, instance, args, kwargs)
    if begun is None:
        return wrapped(*args, **kwargs)
    call, args, kwargs = begun
    try:
        with carrying(call):
            response = wrapped(*args, **kwargs)
    except BaseException as error:
        call.failed(error)
        raise
    guarded("chat-response", openai_call.answered, call)
    return response


async def _async_request(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    begun = guarded("chat-request", _begin, instance, args, kwargs)
    if begun is None:
        return await wrapped(*args, **kwargs)
    call, args, kwargs = begun
    try:
        with carrying(call):
            response = await wrapped(*args, **kwargs)
    except BaseException as error:
        call.failed(error)
        raise
    guarded("chat-response", openai_call.answered, call)
    return response
