"""Routed calls of requests: a request of ours, sent by a session of ours beside the user's."""

from __future__ import annotations

from typing import Any

from lightning_instrumentation.gateway.companion_clients import beside
from lightning_instrumentation.http.request import Outgoing

_NEVER_CONNECTED = frozenset({"NewConnectionError", "NameResolutionError", "ConnectTimeoutError"})


def gateway_request(request: Any, out: Outgoing) -> Any:
    from requests import Request

    assert out.destination is not None
    headers = out.gateway_headers(request.headers)
    return Request("POST", out.destination.url, headers=headers, data=out.body()).prepare()


def through_gateway(session: Any, request: Any, options: dict[str, Any]) -> Any:
    """Args: options: of the caller's ``send``; how long to wait and whether to read the answer at once are theirs."""
    ours = beside(session, "requests", _session, is_async=False)
    return ours.send(
        request,
        stream=options.get("stream", session.stream),
        timeout=options.get("timeout"),
        allow_redirects=False,
    )


def _session() -> Any:
    """No proxy between us and the daemon, as for spans."""
    from requests import Session

    made = Session()
    made.trust_env = False
    return made


def nothing_was_sent(error: BaseException) -> bool:
    """By urllib3's names: requests wraps what it raised."""
    wrapped = error.args[0] if error.args else None
    reason = getattr(wrapped, "reason", wrapped)
    return type(reason).__name__ in _NEVER_CONNECTED
