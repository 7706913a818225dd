"""Hook in botocore, which boto3 is built on: ``URLLib3Session.send``. Its requests are signed, and never changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from lightning_instrumentation.clients.outgoing import Outgoing, concerns, going_out
from lightning_instrumentation.clients.urllib3_reader import WatchedRaw
from lightning_instrumentation.delivery.deferred import when_gone
from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.routing.destination import not_routed
from lightning_instrumentation.wire.body import rewritten


def wrap(module: Any) -> None:
    """Hook of ``botocore.httpsession``."""
    patching.wrap(module, "URLLib3Session.send", _send)


def _send(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    request = args[0] if args else kwargs.get("request")
    out = guarded("http-request", _outgoing, request)
    if out is None:
        return wrapped(*args, **kwargs)
    try:
        response = wrapped(*args, **kwargs)
    except BaseException as error:
        out.failed(error)
        raise
    guarded("http-response", _answered, out, request, response)
    return response


def _outgoing(request: Any) -> Outgoing | None:
    path = urlsplit(request.url).path
    if not concerns(request.method, path):
        return None
    out = going_out("botocore", request.url, request.body, {}, may_be_routed=False)
    if out is not None:
        out.call.asks_nothing()
        # A signed request keeps its destination: if a policy claims its agent, that is counted and reported.
        guarded("route", not_routed, request.url)
    return out


def _answered(out: Outgoing, request: Any, response: Any) -> None:
    if response.status_code >= 400:
        out.refused(response.status_code)
        return
    content_type = response.headers.get("content-type") or ""
    if not request.stream_output:
        rewritten(out.call, response.content, content_type)
        out.ended()
        return
    response.raw = WatchedRaw(response.raw, out.call, content_type, response.headers.get("content-encoding"))
    out.call.under_way = True
    # Watch the stream: code that reads it holds the stream and not the response.
    when_gone(response.raw, out.call.abandon)
