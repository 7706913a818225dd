"""Hooks in httpx and httpx2 (one API under two names): ``Client.send`` and ``AsyncClient.send``.

``send`` lies below every way to make a request and above redirects, authentication and any transport.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import Any

import wrapt

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.http.request import Outgoing, concerns, going_out
from lightning_instrumentation.wire.body import Body, rewritten
from lightning_instrumentation.wire.call import silence


def wrap(module: Any) -> None:
    wrapt.wrap_function_wrapper(module, "Client.send", _send(module))
    wrapt.wrap_function_wrapper(module, "AsyncClient.send", _async_send(module))


def _send(module: Any) -> Callable[..., Any]:
    def send(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = args[0] if args else kwargs.get("request")
        outgoing = guarded("http-request", _outgoing, module, request)
        if outgoing is None:
            return wrapped(*args, **kwargs)
        out, changed = outgoing
        args, kwargs = ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "request": changed})
        try:
            with silence():
                response = wrapped(*args, **kwargs)
        except BaseException as error:
            out.failed(error)
            raise
        guarded("http-response", _answered, module, out, request, changed, response)
        return response

    return send


def _async_send(module: Any) -> Callable[..., Any]:
    async def send(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = args[0] if args else kwargs.get("request")
        outgoing = guarded("http-request", _outgoing, module, request)
        if outgoing is None:
            return await wrapped(*args, **kwargs)
        out, changed = outgoing
        args, kwargs = ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "request": changed})
        try:
            with silence():
                response = await wrapped(*args, **kwargs)
        except BaseException as error:
            out.failed(error)
            raise
        guarded("http-response", _answered, module, out, request, changed, response)
        return response

    return send


def _outgoing(module: Any, request: Any) -> tuple[Outgoing, Any] | None:
    if request is None or not concerns(request.method, request.url.path):
        return None
    content = getattr(request, "_content", None)
    out = going_out(module.__name__, str(request.url), content, _Names(request.headers))
    if out is None:
        return None
    return out, _changed(module, request, out) if out.headers or out.document else request


class _Names:
    """Whether a header is set; the library's own mapping is blind to case."""

    def __init__(self, headers: Any) -> None:
        self._headers = headers

    def __contains__(self, name: object) -> bool:
        # Asking for compressed answers is the library's default, not the user's wish.
        return name in self._headers and name != "accept-encoding"


def _changed(module: Any, request: Any, out: Outgoing) -> Any:
    body = out.body()
    headers = module.Headers(request.headers)
    headers.update(out.headers)
    if body is not None:
        headers.pop("content-length", None)
    return module.Request(
        request.method,
        request.url,
        headers=headers,
        content=request.content if body is None else body,
        extensions=request.extensions,
    )


def _answered(module: Any, out: Outgoing, request: Any, changed: Any, response: Any) -> None:
    call = out.call
    if response.request is changed:
        response.request = request
    if response.status_code >= 400:
        out.refused(response.status_code)
        return
    content_type = response.headers.get("content-type", "")
    if hasattr(response, "_content"):
        content = rewritten(call, response.content, content_type)
        if content is not None:
            response._content = content
            if "content-length" in response.headers:
                response.headers["content-length"] = str(len(content))
        out.ended()
        return
    body = Body(call, content_type, response.headers.get("content-encoding"))
    watched = _streams(module)[0 if isinstance(response.stream, module.SyncByteStream) else 1]
    response.stream = watched(response.stream, body)
    call.under_way = True
    weakref.finalize(response, body.given_up)


@cache
def _streams(module: Any) -> tuple[Any, Any]:
    """The library asks for instances of its own stream classes."""

    class Watched:
        def __init__(self, stream: Any, body: Body) -> None:
            self._stream = stream
            self._body = body

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["_stream"], name)

    class SyncWatched(Watched, module.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            try:
                for data in self._stream:
                    handed_on = self._body.take(data)
                    if handed_on:
                        yield handed_on
                rest = self._body.rest()
                if rest:
                    yield rest
            except BaseException as error:
                self._body.failed(error)
                raise
            self._body.ended()

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._body.given_up()

    class AsyncWatched(Watched, module.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for data in self._stream:
                    handed_on = self._body.take(data)
                    if handed_on:
                        yield handed_on
                rest = self._body.rest()
                if rest:
                    yield rest
            except BaseException as error:
                self._body.failed(error)
                raise
            self._body.ended()

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                self._body.given_up()

    return SyncWatched, AsyncWatched
