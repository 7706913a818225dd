"""Routed calls of requests: our own request, sent by our own session next to the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_instrumentation.gateway.companion_clients import beside
from lightning_instrumentation.http.request import Outgoing

if TYPE_CHECKING:
    from ssl import SSLContext

_NEVER_CONNECTED = frozenset({"NewConnectionError", "NameResolutionError", "ConnectTimeoutError"})


def gateway_request(request: Any, out: Outgoing) -> Any:
    """Return the prepared request for the gateway."""
    from requests import Request

    assert out.destination is not None
    headers = out.gateway_headers(request.headers)
    return Request("POST", out.destination.url, headers=headers, data=out.body()).prepare()


def through_gateway(session: Any, request: Any, out: Outgoing, options: dict[str, Any]) -> Any:
    """Send a request to the gateway. ``options``: of the caller's ``send``, for timeouts and streaming."""
    tls = out.tls()
    ours = beside(session, ("requests", tls), lambda: _session(tls), is_async=False)
    return ours.send(
        request,
        stream=options.get("stream", session.stream),
        timeout=options.get("timeout"),
        allow_redirects=False,
    )


def _session(tls: SSLContext | None) -> Any:
    """Return a session; it uses no proxy, as for spans."""
    from requests import Session
    from requests.adapters import HTTPAdapter

    class TlsAdapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            assert tls is not None
            # The context decides whether the name matters; None leaves that to it.
            named = None if tls.check_hostname else False
            super().init_poolmanager(*args, ssl_context=tls, assert_hostname=named, **options)

        def cert_verify(self, *_: Any) -> None:
            """Add nothing to what the context trusts."""

    made = Session()
    made.trust_env = False
    if tls is not None:
        made.mount("https://", TlsAdapter())
    return made


def nothing_was_sent(error: BaseException) -> bool:
    """Whether the connection failed, by urllib3's class names: requests wraps its exceptions."""
    wrapped = error.args[0] if error.args else None
    reason = getattr(wrapped, "reason", wrapped)
    certificate = reason.args[0] if isinstance(reason, Exception) and reason.args else None
    return type(reason).__name__ in _NEVER_CONNECTED or type(certificate).__name__ == "SSLCertVerificationError"
