"""Routed calls of httpx and httpx2: a request of ours, sent by a client of ours beside the user's."""

from __future__ import annotations

from typing import Any

from lightning_instrumentation.gateway.companion_clients import beside
from lightning_instrumentation.http.request import Outgoing


def gateway_request(module: Any, request: Any, out: Outgoing) -> Any:
    """Of the caller's request, its timeouts go along: their client knows them and ours does not."""
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
    """Return what sends the request; no proxy between us and the daemon, as for spans, and no redirect to elsewhere."""
    is_async = isinstance(client, module.AsyncClient)
    make = module.AsyncClient if is_async else module.Client
    tls = out.tls()
    return beside(
        client,
        (module.__name__, tls),
        # Reading certificates that nobody will check costs 20 ms.
        lambda: make(trust_env=False, follow_redirects=False, verify=False if tls is None else tls),
        is_async=is_async,
    )
