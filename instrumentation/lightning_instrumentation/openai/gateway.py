"""The openai client that carries routed calls to the daemon's gateway, one beside each client of the user."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from lightning_instrumentation.gateway.companion_clients import beside

_PLACEHOLDER_KEY = "lightning"
_MARK = "_lightning_gateway"
_NEVER_CONNECTED = frozenset({"ConnectError", "ConnectTimeout"})
_ATTEMPT_HEADER = "x-stainless-retry-count"


class DaemonAwayError(BaseException):
    """Nobody took the connection, so nothing was sent. Not an ``Exception``: the openai client would retry it."""


def is_gateway_client(client: Any) -> bool:
    return getattr(client, _MARK, False) is True


def gateway_client(client: Any, endpoint: str, token: str | None, *, fallback: bool) -> Any:
    """Return the one beside ``client``, made at its first routed call."""
    return beside(
        client,
        (endpoint, token, fallback),
        lambda: _make(client, endpoint, token, fallback),
        is_async=_is_async(client),
    )


def _is_async(client: Any) -> bool:
    from openai import AsyncOpenAI

    return isinstance(client, AsyncOpenAI)


def _make(client: Any, endpoint: str, token: str | None, fallback: bool) -> Any:
    import openai

    is_async = _is_async(client)
    made = (openai.AsyncOpenAI if is_async else openai.OpenAI)(
        api_key=token or _PLACEHOLDER_KEY,
        base_url=f"{endpoint}/v1",
        http_client=(_async_http if is_async else _sync_http)(endpoint, fallback),
    )
    # What the constructor took from the environment is for the user's own provider.
    made.organization = made.project = None
    made._custom_headers = {}
    setattr(made, _MARK, True)
    return made


def _transport_options(endpoint: str) -> dict[str, Any]:
    """No proxy between us and the daemon, as for spans, and no redirect to elsewhere."""
    options: dict[str, Any] = {"trust_env": False, "follow_redirects": False}
    if urlsplit(endpoint).scheme == "http":
        options["verify"] = False  # reading certificates that nobody will check costs 20 ms
    return options


def _sync_http(endpoint: str, fallback: bool) -> Any:
    import openai

    class GatewayHttp(openai.DefaultHttpxClient):
        def send(self, request: Any, **options: Any) -> Any:
            try:
                return super().send(request, **options)
            except Exception as error:
                if fallback and _nothing_was_sent(error, request):
                    raise DaemonAwayError(str(error)) from error
                raise

    return GatewayHttp(**_transport_options(endpoint))


def _async_http(endpoint: str, fallback: bool) -> Any:
    import openai

    class GatewayHttp(openai.DefaultAsyncHttpxClient):
        async def send(self, request: Any, **options: Any) -> Any:
            try:
                return await super().send(request, **options)
            except Exception as error:
                if fallback and _nothing_was_sent(error, request):
                    raise DaemonAwayError(str(error)) from error
                raise

    return GatewayHttp(**_transport_options(endpoint))


def _nothing_was_sent(error: Exception, request: Any) -> bool:
    """By name: openai brings one of two HTTP libraries. A retry follows an attempt that may have been sent."""
    return type(error).__name__ in _NEVER_CONNECTED and request.headers.get(_ATTEMPT_HEADER) == "0"
