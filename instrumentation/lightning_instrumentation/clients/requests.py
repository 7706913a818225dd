"""Hook in requests: ``Session.send``, below every way to make a request and above redirects and adapters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lightning_instrumentation.clients.http_exchange import Prepared, SendExchange
from lightning_instrumentation.clients.outgoing import Outgoing, concerns, going_out, join
from lightning_instrumentation.clients.redirects import Redirects, under_way
from lightning_instrumentation.clients.urllib3_reader import WatchedRaw
from lightning_instrumentation.delivery.deferred import when_gone
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.routing.companion_clients import companion
from lightning_instrumentation.routing.edge import Edge
from lightning_instrumentation.routing.exchange import exchange
from lightning_instrumentation.wire.body import rewritten

if TYPE_CHECKING:
    from ssl import SSLContext


_NEVER_CONNECTED = frozenset({"NewConnectionError", "NameResolutionError", "ConnectTimeoutError"})


def wrap(module: Any) -> None:
    """Hook of ``requests``."""
    patching.wrap(module, "Session.send", _send)


def _send(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    request = args[0] if args else kwargs.get("request")
    redirects = under_way()
    if redirects is not None:
        _send_on(redirects, request)  # requests sends each redirect as a separate request
        return wrapped(*args, **kwargs)
    return exchange(_RequestsExchange(instance, wrapped, args, kwargs))


def _send_on(redirects: Redirects, request: Any) -> None:
    if redirects.must_leave_us(request.url, request.headers):
        _give_back_body(redirects, request)


def _give_back_body(redirects: Redirects, request: Any) -> None:
    if redirects.own_body is not None and request.body is not None:
        request.body, request.headers["Content-Length"] = redirects.own_body()


class _RequestsExchange(SendExchange):
    __slots__ = ()

    def edge(self) -> Edge | None:
        from requests import ConnectionError as NotConnected

        url = getattr(self.request, "url", None)
        if not url or not concerns(self.request.method or "", urlsplit(url).path):
            return None
        return Edge(url, self.kwargs.get("timeout"), partial(NotConnected, request=self.request))

    def prepare(self) -> Prepared | None:
        request = self.request
        present = {name.lower(): value for name, value in request.headers.items()}
        present.pop("accept-encoding", None)
        out = join() or going_out("requests", request.url, request.body, present)
        if out is None:
            return None
        if out.destination is not None:
            return Prepared(out, gateway_request(request, out))
        return self.with_additions(out)

    def with_additions(self, out: Outgoing) -> Prepared:
        request = self.request
        if not (out.headers or out.document):
            return Prepared(out, request)
        changed = request.copy()
        changed.headers.update(out.headers)
        body = out.body()
        if body is not None:
            changed.body = body
            changed.headers["Content-Length"] = str(len(body))
        own = request.body, request.headers.get("Content-Length", "")
        return Prepared(out, changed, out.redirects(changed.headers, request.headers, lambda: own))

    def send_to_gateway(self) -> Any:
        return through_gateway(self.client, self.prepared.sent, self.prepared.out, self.kwargs)

    def nothing_was_sent(self, error: BaseException) -> bool:
        # All exceptions of requests are OSErrors.
        return isinstance(error, OSError) and nothing_was_sent(error)

    def answered(self, response: Any) -> None:
        _answered(self.request, self.prepared, response)


def _answered(request: Any, prepared: Prepared, response: Any) -> None:
    _hide_requests(request, prepared.sent, prepared.redirects, response)
    out = prepared.out
    if response.status_code >= 400:
        out.refused(response.status_code)
        return
    content_type = response.headers.get("content-type", "")
    if response._content is not False:
        content, _ = rewritten(out.call, response.content, content_type)
        if content is not None:
            response._content = content
            if "content-length" in response.headers:
                response.headers["content-length"] = str(len(content))
        out.ended()
        return
    response.raw = WatchedRaw(response.raw, out.call, content_type, response.headers.get("content-encoding"))
    out.call.under_way = True
    when_gone(response, out.call.abandon)


def _hide_requests(request: Any, changed: Any, redirects: Redirects | None, response: Any) -> None:
    """Make the answer refer to the caller's requests, including the next one, which the caller may send by hand."""
    for one in (*response.history, response):
        if one.request is changed:
            one.request = request
            one.url = request.url if one is response and not response.history else one.url
        elif redirects is not None:
            redirects.take_out(one.request.headers)
    if redirects is not None and response.next is not None:
        redirects.take_out(response.next.headers)
        _give_back_body(redirects, response.next)


def gateway_request(request: Any, out: Outgoing) -> Any:
    """Return the request that goes to the gateway in place of the caller's."""
    from requests import Request

    assert out.destination is not None
    headers = out.gateway_headers(request.headers)
    return Request("POST", out.destination.url, headers=headers, data=out.body()).prepare()


def through_gateway(session: Any, request: Any, out: Outgoing, options: dict[str, Any]) -> Any:
    """Send a routed request with a session of ours alongside the user's.

    Args:
        options: the options of the caller's ``send``; those for the timeout and for reading the answer at once apply.
    """
    tls = out.tls()
    ours = companion(session, ("requests", tls), lambda: _session(tls), is_async=False)
    return ours.send(
        request,
        stream=options.get("stream", session.stream),
        timeout=options.get("timeout"),
        allow_redirects=False,
    )


def _session(tls: SSLContext | None) -> Any:
    """Return a session that uses no proxy between us and the daemon (spans use none either)."""
    from requests import Session
    from requests.adapters import HTTPAdapter

    class TlsAdapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            assert tls is not None
            # The context decides whether the name is checked; None would check it in any case.
            named = None if tls.check_hostname else False
            super().init_poolmanager(*args, ssl_context=tls, assert_hostname=named, **options)

        def cert_verify(self, *_: Any) -> None:
            """Add nothing to the certificates that the context trusts."""

    made = Session()
    made.trust_env = False
    if tls is not None:
        made.mount("https://", TlsAdapter())
    return made


def nothing_was_sent(error: BaseException) -> bool:
    """Whether an error shows that nothing was sent, judged by the names of urllib3's errors, which requests wraps."""
    wrapped = error.args[0] if error.args else None
    reason = getattr(wrapped, "reason", wrapped)
    certificate = reason.args[0] if isinstance(reason, Exception) and reason.args else None
    return type(reason).__name__ in _NEVER_CONNECTED or type(certificate).__name__ == "SSLCertVerificationError"
