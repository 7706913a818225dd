"""Routed calls of aiohttp: each in its own session with its own connection.

An unclosed session warns when it is garbage-collected, and no code would close ours; so it detaches its connection,
which ends with the answer.
"""

from __future__ import annotations

from typing import Any

from lightning_instrumentation.http.request import Outgoing

_PASSED = ("timeout", "raise_for_status", "read_until_eof", "read_bufsize", "auto_decompress")
"""Arguments of the caller's that control timeouts and how the answer is returned."""


def never_connected() -> tuple[type[Exception], ...]:
    """Return the exceptions that mean that nothing was sent."""
    from aiohttp import ClientConnectorError, ConnectionTimeoutError

    return ClientConnectorError, ConnectionTimeoutError


async def through_gateway(session: Any, out: Outgoing, options: dict[str, Any]) -> Any:
    """Send a routed call and return the answer."""
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
