"""Hook in aiohttp: ``ClientSession._request``, which every way to make a request goes through."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import wrapt

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.http.aiohttp_reader import RewrittenReader, WatchedReader
from lightning_instrumentation.http.request import Outgoing, concerns, going_out
from lightning_instrumentation.wire.body import Body
from lightning_instrumentation.wire.call import silence


def wrap(module: Any) -> None:
    wrapt.wrap_function_wrapper(module, "ClientSession._request", _request)
    wrapt.wrap_function_wrapper(module, "ClientResponse.close", _close)
    wrapt.wrap_function_wrapper(module, "ClientResponse.release", _close)


async def _request(
    wrapped: Callable[..., Awaitable[Any]], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    outgoing = guarded("http-request", _outgoing, instance, args, kwargs)
    if outgoing is None:
        return await wrapped(*args, **kwargs)
    out, changed = outgoing
    try:
        with silence():
            response = await wrapped(*args, **changed)
    except BaseException as error:
        out.failed(error)
        raise
    guarded("http-response", _answered, out, response)
    return response


def _outgoing(session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Outgoing, dict[str, Any]] | None:
    if len(args) != 2:
        return None
    method, url = args[0], session._build_url(args[1])
    if not concerns(method, url.path):
        return None
    given = kwargs.get("json") if kwargs.get("json") is not None else kwargs.get("data")
    present = {str(name).lower() for name in (*session.headers, *_names(kwargs.get("headers")))}
    out = going_out("aiohttp", str(url), given, present)
    if out is None or not (out.headers or out.document):
        return None if out is None else (out, kwargs)
    changed = {**kwargs, "headers": [*_pairs(kwargs.get("headers")), *out.headers.items()]}
    if out.document is not None:
        changed["json" if kwargs.get("json") is not None else "data"] = (
            out.document if kwargs.get("json") is not None else out.body()
        )
    return out, changed


def _pairs(headers: Any) -> Iterable[tuple[str, str]]:
    if headers is None:
        return ()
    return headers.items() if isinstance(headers, Mapping) else headers


def _names(headers: Any) -> Iterable[str]:
    return [name for name, _ in _pairs(headers)]


def _answered(out: Outgoing, response: Any) -> None:
    if response.status >= 400:
        out.refused(response.status)
        return
    # What its reader hands out is decoded already, unless the session was told to leave it as it came.
    decoded = getattr(response._session, "_auto_decompress", True) if response._session is not None else True
    encoding = None if decoded else response.headers.get("content-encoding")
    body = Body(out.call, response.headers.get("content-type", ""), encoding)
    response.content = (RewrittenReader if body.rewrites else WatchedReader)(response.content, body)
    out.call.under_way = True
    weakref.finalize(response, body.given_up)


def _close(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    reader = instance.content
    if isinstance(reader, WatchedReader):
        reader.left()
    return wrapped(*args, **kwargs)
