"""Hook in aiohttp: ``ClientSession._request``, which every request goes through."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from lightning_instrumentation.delivery.deferred import when_gone
from lightning_instrumentation.failures import guarded
from lightning_instrumentation.gateway.edge import Edge
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.http.aiohttp_reader import RewrittenReader, WatchedReader
from lightning_instrumentation.http.redirects import Redirects, following, under_way
from lightning_instrumentation.http.request import Outgoing, concerns, going_out, join
from lightning_instrumentation.wire.body import Body

_PASSED = ("timeout", "raise_for_status", "read_until_eof", "read_bufsize", "auto_decompress")
"""Arguments of the caller's that say how to wait for the answer and how to hand it out."""


def wrap(module: Any) -> None:
    """Hook of ``aiohttp``."""
    # First: if redirects cannot be watched, nothing is added to any request.
    patching.wrap(module, "ClientRequest.__init__", _request_made)
    patching.wrap(module, "ClientSession._request", _request)
    patching.wrap(module, "ClientResponse.close", _close)
    patching.wrap(module, "ClientResponse.release", _close)


async def _request(
    wrapped: Callable[..., Awaitable[Any]], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    edge = guarded("http-request", _edge, instance, args, kwargs)
    if edge is None:
        return await wrapped(*args, **kwargs)
    async with edge:
        outgoing = guarded("http-request", _outgoing, instance, args, kwargs)
    if outgoing is None:
        return await wrapped(*args, **kwargs)
    out, changed, redirects = outgoing
    response = None
    try:
        if out.destination is not None:
            try:
                with following(None):
                    response = await through_gateway(instance, out, kwargs)
            except never_connected() as away:
                if not out.may_fall_back(_by_name(kwargs)):
                    raise
                out, changed, redirects = _fall_back(instance, kwargs, out, away)
        if response is None:
            with following(redirects):
                response = await wrapped(*args, **changed)
    except BaseException as error:
        out.failed(error)
        raise
    guarded("http-response", _answered, out, response)
    return response


def _request_made(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Watch redirects: aiohttp creates a new request for each, all with one mapping of headers."""
    redirects = under_way()
    url, headers = (args[1] if len(args) > 1 else kwargs.get("url")), kwargs.get("headers")
    if redirects is not None and headers is not None and redirects.must_leave_us(str(url), headers):
        kwargs = _with_own_body(redirects, kwargs)
    return wrapped(*args, **kwargs)


def _with_own_body(redirects: Redirects, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the first request's body, if the redirect keeps it."""
    if redirects.own_body is None or kwargs.get("data") is None:
        return kwargs
    return {**kwargs, "data": redirects.own_body()}


def _edge(session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Edge | None:
    from aiohttp import ClientConnectionError

    if len(args) != 2:
        return None
    method, url = args[0], session._build_url(args[1])
    if not concerns(method, url.path):
        return None
    given = kwargs.get("timeout")
    own = isinstance(given, (int, float)) or hasattr(given, "total")
    return Edge(url, given if own else session.timeout, ClientConnectionError)


def _outgoing(
    session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Outgoing, dict[str, Any], Redirects | None] | None:
    url = session._build_url(args[1])
    given = _serialized(session, kwargs["json"]) if kwargs.get("json") is not None else kwargs.get("data")
    out = join() or going_out("aiohttp", str(url), given, _present(session, kwargs), may_be_routed=not session.closed)
    return None if out is None else _with_additions(session, kwargs, out)


def _serialized(session: Any, document: Any) -> Any:
    """Return a document as the session's own serializer writes it, which may know types that JSON has not."""
    in_bytes = getattr(session, "_json_serialize_bytes", None)  # aiohttp 3.14
    if in_bytes is not None:
        return in_bytes(document)
    own = session._json_serialize
    return document if own is json.dumps else own(document)


def _fall_back(
    session: Any, kwargs: dict[str, Any], out: Outgoing, away: Exception
) -> tuple[Outgoing, dict[str, Any], Redirects | None]:
    """Send a routed call to the caller's own host; if anything fails here, with the caller's own arguments."""
    return guarded("route-fallback", lambda: _with_additions(session, kwargs, out.fall_back(away))) or (
        out,
        kwargs,
        None,
    )


def _with_additions(
    session: Any, kwargs: dict[str, Any], out: Outgoing
) -> tuple[Outgoing, dict[str, Any], Redirects | None]:
    if out.destination is not None or not (out.headers or out.document):
        return out, kwargs, None
    kept = [pair for pair in _pairs(kwargs.get("headers")) if str(pair[0]).lower() not in out.headers]
    changed = {**kwargs, "headers": [*kept, *out.headers.items()]}
    if out.document is not None:
        changed["json" if kwargs.get("json") is not None else "data"] = (
            out.document if kwargs.get("json") is not None else out.body()
        )
    return out, changed, out.redirects(out.headers, _present(session, kwargs), lambda: _own_body(session, kwargs))


def _own_body(session: Any, kwargs: dict[str, Any]) -> Any:
    """Return the body that aiohttp itself makes of the arguments."""
    if kwargs.get("json") is None:
        return kwargs.get("data")
    from aiohttp import payload

    in_bytes = getattr(session, "_json_serialize_bytes", None)
    if in_bytes is not None:
        return payload.JsonBytesPayload(kwargs["json"], dumps=in_bytes)
    return payload.JsonPayload(kwargs["json"], dumps=session._json_serialize)


def _pairs(headers: Any) -> Iterable[tuple[str, str]]:
    if headers is None:
        return ()
    return headers.items() if isinstance(headers, Mapping) else headers


def _by_name(kwargs: dict[str, Any]) -> dict[str, str]:
    return {str(name).lower(): value for name, value in _pairs(kwargs.get("headers"))}


def _present(session: Any, kwargs: dict[str, Any]) -> dict[str, str]:
    return {str(name).lower(): value for name, value in session.headers.items()} | _by_name(kwargs)


def _answered(out: Outgoing, response: Any) -> None:
    if response.status >= 400:
        out.refused(response.status)
        return
    # Its reader returns decoded bytes, unless the session was told not to decode.
    decoded = getattr(response._session, "_auto_decompress", True) if response._session is not None else True
    encoding = None if decoded else response.headers.get("content-encoding")
    body = Body(out.call, response.headers.get("content-type", ""), encoding)
    response.content = (RewrittenReader if body.rewrites else WatchedReader)(response.content, body)
    out.call.under_way = True
    when_gone(response, body.abandon)


def _close(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    reader = instance.content
    if isinstance(reader, WatchedReader):
        reader.left()
    return wrapped(*args, **kwargs)


def never_connected() -> tuple[type[Exception], ...]:
    """Return aiohttp's exceptions that mean that nothing was sent."""
    from aiohttp import ClientConnectorError, ConnectionTimeoutError

    return ClientConnectorError, ConnectionTimeoutError


async def through_gateway(session: Any, out: Outgoing, options: dict[str, Any]) -> Any:
    """Make a routed call by a session of ours over a connection of its own.

    An unclosed session complains when it is garbage-collected, and nothing would close ours; so it gives up its
    connection, which ends with the answer.
    """
    from aiohttp import ClientSession, DummyCookieJar, TCPConnector, ThreadedResolver

    assert out.destination is not None
    tls = out.tls()
    ours = ClientSession(
        connector=TCPConnector(force_close=True, resolver=ThreadedResolver(), ssl=True if tls is None else tls),
        cookie_jar=DummyCookieJar(),
        timeout=session.timeout,
        raise_for_status=session.raise_for_status,
        auto_decompress=session.auto_decompress,
    )
    caller = options.get("headers") or {}
    try:
        return await ours.post(
            out.destination.url,
            data=out.body(),
            headers=out.gateway_headers(dict(caller)),
            allow_redirects=False,
            **{name: options[name] for name in _PASSED if name in options},
        )
    finally:
        ours.detach()
