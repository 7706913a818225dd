"""One model call on its way to the gateway instead of to the host that the user configured.

Only what the gateway needs is sent: the body with the policy as its model, and the openai client's own headers; no key,
no other header, no query.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_instrumentation.clients.openai import options as of
from lightning_instrumentation.clients.openai.gateway import gateway_client
from lightning_instrumentation.routing.companion_clients import is_mocked
from lightning_instrumentation.routing.destination import Destination, destination_of
from lightning_instrumentation.runtime import runtime

_PASSED_HEADERS = ("x-stainless-", "accept")
_SET_BY_THE_CLIENT = frozenset({"x-stainless-retry-count", "x-stainless-read-timeout"})


@dataclass(frozen=True, slots=True)
class Route:
    """The clients and options of a routed call."""

    destination: Destination
    client: Any
    """Our client: see ``openai.gateway``."""
    options: Any
    url: str
    body: Mapping[str, Any]
    own_client: Any
    """The user's client and, below, their original options: the call is made with these if the daemon is down."""
    own_options: Any
    own_url: str
    own_body: Mapping[str, Any]


def route_of(client: Any, options: Any, url: str, body: Mapping[str, Any]) -> Route | None:
    """Return the route by which a call goes to the gateway; None if the call keeps its destination."""
    started = runtime()
    destination = destination_of(url, body)
    # The caller of a closed client must get that client's error. Checked last, because most calls are not routed.
    if started is None or destination is None or client.is_closed() or is_mocked(client._client, url):
        return None
    settings = started.settings
    router, access = started.router, started.router.access
    ours = gateway_client(client, settings.endpoint, access.token, fallback=router.fallback, tls=access.verified_by)
    changed = _readdressed(client, options, destination)
    return Route(
        destination=destination,
        client=ours,
        options=changed,
        url=of.url_of(ours, changed),
        body=of.body_of(changed),
        own_client=client,
        own_options=options,
        own_url=url,
        own_body=body,
    )


def _readdressed(client: Any, options: Any, destination: Destination) -> Any:
    changed = copy.copy(options)
    changed.url = destination.path
    changed.params = {}
    changed.headers = {
        name: value
        for name, value in of.headers_of(options).items()
        if name.lower().startswith(_PASSED_HEADERS) and name.lower() not in _SET_BY_THE_CLIENT
    }
    changed.json_data = {**options.json_data, "model": destination.policy}
    if isinstance(options.extra_json, Mapping) and "model" in options.extra_json:
        changed.extra_json = {**options.extra_json, "model": destination.policy}
    # The user's retries and timeouts, which only their client knows.
    changed.max_retries = options.get_max_retries(client.max_retries)
    changed.timeout = of.timeout_of(client, options)
    return changed
