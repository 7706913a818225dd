"""The openai client that carries routed calls to the daemon's gateway, one for each client of the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning_instrumentation.routing.companion_clients import companion

if TYPE_CHECKING:
    from ssl import SSLContext

_PLACEHOLDER_KEY = "lightning"
_MARK = "_lightning_gateway"
_NEVER_CONNECTED = frozenset({"ConnectError", "ConnectTimeout"})
_ATTEMPT_HEADER = "x-stainless-retry-count"


class DaemonAwayError(BaseException):
    """The connection was refused, so nothing was sent. Not an ``Exception``: the openai client would retry it."""


def is_gateway_client(client: Any) -> bool:
    """Whether a client is one of ours."""
    return getattr(client, _MARK, False) is True


def gateway_client(
    client: Any, endpoint: str, token: str | None, *, fallback: bool, tls: SSLContext | None = None
) -> Any:
    """Return the client that belongs to ``client``, created at its first routed call.

    Copies of a client (``with_options``) share its HTTP client, so they share ours too: whatever differs between them
    comes with each request.

    Args:
        tls: the SSL context for the gateway; None for a gateway without TLS.
    """
    return companion(
        client._client,
        ("openai", endpoint, token, fallback, tls),
        lambda: _make(client, endpoint, token, fallback, tls),
        is_async=_is_async(client),
    )


def _is_async(client: Any) -> bool:
    from openai import AsyncOpenAI

    return isinstance(client, AsyncOpenAI)


def _make(client: Any, endpoint: str, token: str | None, fallback: bool, tls: SSLContext | None) -> Any:
    import openai

    is_async = _is_async(client)
    made = (openai.AsyncOpenAI if is_async else openai.OpenAI)(
        api_key=token or _PLACEHOLDER_KEY,
        base_url=f"{endpoint}/v1",
        http_client=(_async_http if is_async else _sync_http)(tls, fallback),
    )
    # What the constructor read from the environment is for the user's own provider.
    made.organization = made.project = None
    made._custom_headers = {}
    setattr(made, _MARK, True)
    return made


def _transport_options(tls: SSLContext | None) -> dict[str, Any]:
    """Return the transport options: no proxy, as for spans, and no redirects."""
    # Reading certificates that will not be checked costs 20 ms.
    return {"trust_env": False, "follow_redirects": False, "verify": False if tls is None else tls}


def _sync_http(tls: SSLContext | None, fallback: bool) -> Any:
    import openai

    class GatewayHttp(openai.DefaultHttpxClient):
        def send(self, request: Any, **options: Any) -> Any:
            try:
                return super().send(request, **options)
            except Exception as error:
                if fallback and _nothing_was_sent(error, request):
                    raise DaemonAwayError(str(error)) from error
                raise

    return GatewayHttp(**_transport_options(tls))


def _async_http(tls: SSLContext | None, fallback: bool) -> Any:
    import openai

    class GatewayHttp(openai.DefaultAsyncHttpxClient):
        async def send(self, request: Any, **options: Any) -> Any:
            try:
                return await super().send(request, **options)
            except Exception as error:
                if fallback and _nothing_was_sent(error, request):
                    raise DaemonAwayError(str(error)) from error
                raise

    return GatewayHttp(**_transport_options(tls))


def _nothing_was_sent(error: Exception, request: Any) -> bool:
    """Whether the connection failed at the first attempt; a retry follows an attempt that may have been sent. Errors
    are recognized by class name, because openai uses one of two HTTP libraries."""
    return type(error).__name__ in _NEVER_CONNECTED and request.headers.get(_ATTEMPT_HEADER) == "0"
