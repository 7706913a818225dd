"""Hook in aiohttp: ``ClientSession._request``, which every request goes through."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from lightning_instrumentation.clients.aiohttp_reader import RewrittenReader, WatchedReader
from lightning_instrumentation.clients.http_exchange import HttpExchange, Prepared
from lightning_instrumentation.clients.outgoing import Outgoing, concerns, going_out, join
from lightning_instrumentation.clients.redirects import Redirects, under_way
from lightning_instrumentation.delivery.deferred import when_gone
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.routing.edge import Edge
from lightning_instrumentation.routing.exchange import exchange_async
from lightning_instrumentation.wire.body import Body

_PASSED = ("timeout", "raise_for_status", "read_until_eof", "read_bufsize", "auto_decompress")
"""The caller's arguments that say how to wait for the answer and how to return it."""


def wrap(module: Any) -> None:
    """Hook of ``aiohttp``."""
    # This one first: if redirects cannot be watched, nothing is added to any request.
    patching.wrap(module, "ClientRequest.__init__", _request_made)
    patching.wrap(module, "ClientSession._request", _request)
    patching.wrap(module, "ClientResponse.close", _close)
    patching.wrap(module, "ClientResponse.release", _close)


async def _request(
    wrapped: Callable[..., Awaitable[Any]], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return await exchange_async(_AiohttpExchange(instance, wrapped, args, kwargs))


def _request_made(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Watch redirects: aiohttp creates a new request for each, all with the same mapping of headers."""
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


class _AiohttpExchange(HttpExchange):
    """A request by aiohttp: ``request`` maps its keyword arguments; the positional ones, method and URL, stay as is."""

    __slots__ = ("args", "session", "wrapped")

    def __init__(
        self, session: Any, wrapped: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        super().__init__(kwargs)
        self.session = session
        self.wrapped = wrapped
        self.args = args

    def edge(self) -> Edge | None:
        from aiohttp import ClientConnectionError

        if len(self.args) != 2:
            return None
        method, url = self.args[0], self.session._build_url(self.args[1])
        if not concerns(method, url.path):
            return None
        given = self.request.get("timeout")
        own = isinstance(given, (int, float)) or hasattr(given, "total")
        return Edge(url, given if own else self.session.timeout, ClientConnectionError)

    def prepare(self) -> Prepared | None:
        session, request = self.session, self.request
        url, document = session._build_url(self.args[1]), request.get("json")
        body = request.get("data") if document is None else _serialized(session, document)
        present = _present(session, request)
        out = join() or going_out("aiohttp", str(url), body, present, may_be_routed=not session.closed)
        return None if out is None else self.with_additions(out)

    def with_additions(self, out: Outgoing) -> Prepared:
        session, request = self.session, self.request
        if out.destination is not None or not (out.headers or out.document):
            return Prepared(out, request)
        kept = [pair for pair in _pairs(request.get("headers")) if str(pair[0]).lower() not in out.headers]
        changed = {**request, "headers": [*kept, *out.headers.items()]}
        if out.document is not None and request.get("json") is not None:
            changed["json"] = out.document
        elif out.document is not None:
            changed["data"] = out.body()
        redirects = out.redirects(out.headers, _present(session, request), lambda: _own_body(session, request))
        return Prepared(out, changed, redirects)

    def send(self) -> Awaitable[Any]:
        if self.routed:
            return through_gateway(self.session, self.prepared.out, self.request)
        return self.wrapped(*self.args, **self.prepared.sent)

    def send_unchanged(self) -> Awaitable[Any]:
        return self.wrapped(*self.args, **self.request)

    def nothing_was_sent(self, error: BaseException) -> bool:
        from aiohttp import ClientConnectorError, ConnectionTimeoutError

        return isinstance(error, (ClientConnectorError, ConnectionTimeoutError))

    def headers(self) -> Mapping[str, str]:
        return _by_name(self.request)

    def answered(self, response: Any) -> None:
        _answered(self.prepared.out, response)


def _serialized(session: Any, document: Any) -> Any:
    """Return a document as the session's own serializer writes it, which may support types that JSON lacks."""
    in_bytes = getattr(session, "_json_serialize_bytes", None)  # aiohttp 3.14
    if in_bytes is not None:
        return in_bytes(document)
    own = session._json_serialize
    return document if own is json.dumps else own(document)


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
    # The response's reader returns decoded bytes, unless the session was told not to decode.
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


async def through_gateway(session: Any, out: Outgoing, options: dict[str, Any]) -> Any:
    """Make a routed call with a session of ours over a connection of its own.

    A session that was not closed complains when it is garbage-collected, and nothing would close ours; so we detach it
    from its connection, which ends with the answer.
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
