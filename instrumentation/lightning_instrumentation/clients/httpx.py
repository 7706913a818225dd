"""Hooks in httpx and httpx2 (one API under two names): ``Client.send`` and ``AsyncClient.send``.

``send`` is below every way to make a request and above redirects, authentication, and any transport.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

from lightning_instrumentation.clients.http_exchange import Prepared, SendExchange
from lightning_instrumentation.clients.outgoing import Outgoing, concerns, going_out, join
from lightning_instrumentation.clients.redirects import Redirects, under_way
from lightning_instrumentation.delivery.deferred import when_gone
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.routing.companion_clients import companion, is_mocked
from lightning_instrumentation.routing.edge import Edge
from lightning_instrumentation.routing.exchange import exchange, exchange_async
from lightning_instrumentation.wire.body import Body, rewritten

_DOCUMENT = "_lightning_document"
"""Attribute of a response: its JSON, if we have already parsed it, until the caller asks for it."""


def wrap(module: Any) -> None:
    """Hook of ``httpx`` or ``httpx2``."""
    # These first: if redirects cannot be watched, nothing is added to any request.
    patching.wrap(module, "Client._build_redirect_request", _redirected(module))
    patching.wrap(module, "AsyncClient._build_redirect_request", _redirected(module))
    patching.wrap(module, "Client.send", _send(module))
    patching.wrap(module, "AsyncClient.send", _async_send(module))
    patching.wrap(module, "Response.json", _json)


def _json(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the already parsed document, but only once: each later call gets a document of its own, as always."""
    document = instance.__dict__.pop(_DOCUMENT, None)
    return wrapped(*args, **kwargs) if document is None or args or kwargs else document


def _send(module: Any) -> Callable[..., Any]:
    def send(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return exchange(_HttpxExchange(module, instance, wrapped, args, kwargs))

    return send


def _async_send(module: Any) -> Callable[..., Any]:
    async def send(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await exchange_async(_HttpxExchange(module, instance, wrapped, args, kwargs))

    return send


class _HttpxExchange(SendExchange):
    __slots__ = ("module",)

    def __init__(self, module: Any, *call: Any) -> None:
        super().__init__(*call)
        self.module = module

    def edge(self) -> Edge | None:
        request = self.request
        if request is None or not concerns(request.method, request.url.path):
            return None
        refused = partial(self.module.ConnectError, request=request)
        return Edge(request.url, request.extensions.get("timeout"), refused)

    def prepare(self) -> Prepared | None:
        module, client, request = self.module, self.client, self.request
        joined = join()
        if joined is not None:
            own_body = lambda: joined.without_ours(request.content)  # noqa: E731
            return Prepared(joined, request, joined.redirects(request.headers, client.headers, own_body))
        content = getattr(request, "_content", None)
        may_be_routed = not client.is_closed and not is_mocked(client, request.url)
        out = going_out(module.__name__, request.url, content, _Present(request.headers), may_be_routed=may_be_routed)
        if out is None:
            return None
        if out.destination is not None:
            return Prepared(out, gateway_request(module, request, out))
        return self.with_additions(out)

    def with_additions(self, out: Outgoing) -> Prepared:
        request = self.request
        changed = _changed(self.module, request, out) if out.headers or out.document else request
        return Prepared(out, changed, out.redirects(changed.headers, request.headers, lambda: request.content))

    def send_to_gateway(self) -> Any:
        ours = gateway_client(self.module, self.client, self.prepared.out)
        return ours.send(self.prepared.sent, stream=self.kwargs.get("stream", False))

    def nothing_was_sent(self, error: BaseException) -> bool:
        return isinstance(error, (self.module.ConnectError, self.module.ConnectTimeout))

    def answered(self, response: Any) -> None:
        _answered(self.module, self.request, self.prepared, response)


def _redirected(module: Any) -> Callable[..., Any]:
    def build(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = wrapped(*args, **kwargs)
        redirects = under_way()
        if redirects is not None and redirects.must_leave_us(str(made.url), made.headers):
            _give_back_body(module, redirects, made)
        return made

    return build


def _give_back_body(module: Any, redirects: Redirects, request: Any) -> None:
    """Restore the caller's body: a redirect that keeps the method keeps the body, with its length."""
    if redirects.own_body is None or "content-length" not in request.headers:
        return
    content = redirects.own_body()
    request.stream = module.ByteStream(content)
    request.headers["content-length"] = str(len(content))


class _Present(Mapping[str, str]):
    """The caller's headers, read only if something is added: the library's own mapping is slow to copy."""

    def __init__(self, headers: Any) -> None:
        self._headers = headers

    def __getitem__(self, name: str) -> str:
        if name == "accept-encoding":  # asking for compressed answers is the library's default, not the user's wish
            raise KeyError(name)
        return self._headers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)


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


def _answered(module: Any, request: Any, prepared: Prepared, response: Any) -> None:
    _hide_requests(module, request, prepared.sent, prepared.redirects, response)
    out = prepared.out
    call = out.call
    if response.status_code >= 400:
        out.refused(response.status_code)
        return
    if hasattr(response, "_content"):
        content = response.content
        # Looking up a header takes longer than everything else that a plain answer needs here, so it is left out for a
        # JSON object, which is not a stream.
        is_object = content.startswith(b"{") and not call.api.lines
        content_type = "" if is_object else response.headers.get("content-type", "")
        content, document = rewritten(call, content, content_type)
        if document is not None:
            response.__dict__[_DOCUMENT] = document
        if content is not None:
            response._content = content
            if "content-length" in response.headers:
                response.headers["content-length"] = str(len(content))
        out.ended()
        return
    body = Body(call, response.headers.get("content-type", ""), response.headers.get("content-encoding"))
    watched = _streams(module)[0 if isinstance(response.stream, module.SyncByteStream) else 1]
    response.stream = watched(response.stream, body)
    call.under_way = True
    when_gone(response, body.abandon)


def _hide_requests(module: Any, request: Any, changed: Any, redirects: Redirects | None, response: Any) -> None:
    """Make the answer refer to the caller's requests, including the next one, which the caller may send by hand."""
    if changed is request and redirects is None:
        return
    for one in (*response.history, response):
        if one.request is changed:
            one.request = request
        elif redirects is not None:
            redirects.take_out(one.request.headers)
    if redirects is not None and response.next_request is not None:
        redirects.take_out(response.next_request.headers)
        _give_back_body(module, redirects, response.next_request)


@cache
def _streams(module: Any) -> tuple[Any, Any]:
    """Return our stream classes: the library requires instances of its own."""

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
                    handed_on = self._body.feed(data)
                    if handed_on:
                        yield handed_on
                rest = self._body.finish()
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
                self._body.abandon()

    class AsyncWatched(Watched, module.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for data in self._stream:
                    handed_on = self._body.feed(data)
                    if handed_on:
                        yield handed_on
                rest = self._body.finish()
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
                self._body.abandon()

    return SyncWatched, AsyncWatched


# Routed calls of httpx and httpx2: our own request, sent by our own client next to the user's.


def gateway_request(module: Any, request: Any, out: Outgoing) -> Any:
    """Return the request for the gateway, with the timeouts of the caller's request, which only their client knows."""
    assert out.destination is not None
    timeout = {name: value for name, value in request.extensions.items() if name == "timeout"}
    return module.Request(
        "POST",
        out.destination.url,
        headers=out.gateway_headers(request.headers),
        content=out.body(),
        extensions=timeout,
    )


def gateway_client(module: Any, client: Any, out: Outgoing) -> Any:
    """Return the client for routed calls: it uses no proxy (spans use none either), follows no redirects, and may have
    as many connections as the caller's client."""
    is_async = isinstance(client, module.AsyncClient)
    make = module.AsyncClient if is_async else module.Client
    tls = out.tls()
    return companion(
        client,
        (module.__name__, tls),
        # Reading certificates that will not be checked costs 20 ms.
        lambda: make(
            trust_env=False,
            follow_redirects=False,
            verify=False if tls is None else tls,
            limits=_limits_of(module, client),
        ),
        is_async=is_async,
    )


def _limits_of(module: Any, client: Any) -> Any:
    """Return the limits of a client's own connections; no limits if its transport does not tell them."""
    pool = getattr(client._transport, "_pool", None)
    return module.Limits(
        max_connections=getattr(pool, "_max_connections", None),
        max_keepalive_connections=getattr(pool, "_max_keepalive_connections", None),
    )
