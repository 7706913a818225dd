"""One request of the openai client, with all its retries, as one call."""

from __future__ import annotations

from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.clients.openai import options as of
from lightning_instrumentation.clients.openai.gateway import is_gateway_client
from lightning_instrumentation.clients.openai.route import Route, route_of
from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.routing.destination import fell_back
from lightning_instrumentation.routing.edge import Edge
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.wire import call as wire
from lightning_instrumentation.wire.call import ModelCall

_LIBRARY = "openai"


def edge_of(client: Any, options: Any) -> Edge | None:
    """Return the edge of a model call; None for any other request."""
    if of.api_of(options) is None or wire.is_silent() or is_gateway_client(client):
        return None
    url = of.url_of(client, options)

    def refused(sentence: str) -> Exception:
        from openai import APIConnectionError

        # The request is of the HTTP library that this client uses: openai has used two.
        return APIConnectionError(message=sentence, request=client._client.build_request("POST", url))

    return Edge(url, of.timeout_of(client, options), refused)


def begin(client: Any, options: Any, url: str) -> tuple[ModelCall, Any, Route | None] | None:
    """Start the span of a model call to a URL; return it with the options to send and, if it is routed, its route."""
    api = of.api_of(options)
    if api is None:
        return None
    body = of.body_of(options)
    route = guarded("route", route_of, client, options, url, body)
    if route is not None:
        client, options, url, body = route.client, route.options, route.url, route.body
    begun = wire.begin(api, url, body, captured_by=_LIBRARY, secret=of.key_of(client))
    if begun is None:
        return None
    call, headers = begun
    if route is not None:
        call.describe(route.destination.attributes())
    return call, _with(call, client, options, headers), route


def _with(call: ModelCall, client: Any, options: Any, headers: dict[str, str]) -> Any:
    if not headers and not call.asked:
        return options
    return of.with_additions(client, options, headers, call.api.additions(call.asked))


def fall_back(call: ModelCall, route: Route, away: BaseException) -> Any:
    """Return the options with which a routed call goes to the user's own host, because the daemon is down."""
    options = guarded("route-fallback", _fall_back, call, route, away)
    return route.own_options if options is None else options


def _fall_back(call: ModelCall, route: Route, away: BaseException) -> Any:
    started = runtime()
    if started is None:
        return None
    fell_back(started, route.destination, away)
    headers = wire.readdress(started, call, route.own_url, route.own_body, secret=of.key_of(route.own_client))
    call.describe({semconv.ROUTE_FELL_BACK: True})
    return _with(call, route.own_client, route.own_options, headers)


def answered(call: ModelCall) -> None:
    """End the call when the client has returned, unless its answer is a stream: that call ends when its body does."""
    if not call.sent:
        failures.note(
            "not-captured:http-client",
            "a call of the openai client went through an HTTP client other than httpx and is recorded without its "
            "answer",
        )
    if not call.under_way:
        call.ended()
