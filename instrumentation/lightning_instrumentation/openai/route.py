"""One model call on its way to the gateway instead of to the host that the user configured.

Decided once a call, so that the client's retries go to the same place. Only what the gateway needs goes along: the
body with the policy as its model, and headers of the openai client's own; no key, no other header, no query.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from opentelemetry import baggage

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.hosts import Standing
from lightning_instrumentation.openai import options as of
from lightning_instrumentation.openai.gateway import gateway_client
from lightning_instrumentation.runtime import Runtime, runtime
from lightning_instrumentation.scope import speaker

_PATHS = ("/chat/completions", "/completions", "/responses")
_KEPT_ELSEWHERE = ("previous_response_id", "conversation", "prompt", "background")
"""Fields of a Responses request that mean something only to the host which keeps what they refer to."""
_PASSED_HEADERS = ("x-stainless-", "accept")
_SET_BY_THE_CLIENT = frozenset({"x-stainless-retry-count", "x-stainless-read-timeout"})


@dataclass(frozen=True, slots=True)
class Route:
    policy: str
    client: Any
    """Ours: see ``openai.gateway``."""
    options: Any
    url: str
    body: Mapping[str, Any]
    own_client: Any
    """The user's, with what they asked: where the call goes if the daemon is away."""
    own_options: Any
    own_url: str
    own_body: Mapping[str, Any]

    def attributes(self) -> dict[str, Any]:
        return {
            semconv.ROUTE_POLICY: self.policy,
            semconv.ROUTE_FROM_URL: _plain(self.own_url),
            semconv.ROUTE_FROM_MODEL: str(self.own_body.get("model", "")),
        }


def route_of(client: Any, options: Any, url: str, body: Mapping[str, Any]) -> Route | None:
    """Return where a call goes instead; None for one that goes where it always went."""
    started = runtime()
    if started is None or not started.router.enabled or client.is_closed():
        return None
    if started.hosts.standing(url) is Standing.DAEMON:
        return None
    policy = started.router.policy_of(_agent())
    if policy is None:
        return None
    path = _servable(started, policy, urlsplit(url).path, body)
    if path is None:
        return None
    settings = started.settings
    ours = gateway_client(client, settings.endpoint, settings.token, fallback=started.router.fallback)
    changed = _readdressed(client, options, policy, path)
    return Route(
        policy=policy,
        client=ours,
        options=changed,
        url=of.url_of(ours, changed),
        body=of.body_of(changed),
        own_client=client,
        own_options=options,
        own_url=url,
        own_body=body,
    )


def _servable(started: Runtime, policy: str, path: str, body: Mapping[str, Any]) -> str | None:
    """Return the gateway's path for a call; None, counted and said once, where the gateway cannot answer it."""
    path = next((known for known in _PATHS if path.rstrip("/").endswith(known)), path)
    if path not in started.router.paths:
        failures.note(
            f"not-routed:{path}",
            f"policy {policy!r} claims an agent that calls {path}, which the gateway does not serve: such calls go "
            "where they always went and are not trained",
        )
        return None
    elsewhere = [key for key in _KEPT_ELSEWHERE if body.get(key)] if path == "/responses" else []
    if elsewhere:
        failures.note(
            f"not-routed:{elsewhere[0]}",
            f"policy {policy!r} claims an agent whose call refers to what its own host keeps ({elsewhere[0]}): such "
            "calls go where they always went and are not trained",
        )
        return None
    return path


def fell_back(started: Runtime, route: Route, reason: object) -> None:
    """The daemon was not there for a routed call."""
    started.router.daemon_is_away()
    failures.note(
        "route-fallback",
        f"the daemon at {started.settings.endpoint} is away ({reason}): calls of policy {route.policy!r} go to the "
        "model that the program names until it is back; LIGHTNING_ROUTE_FALLBACK=0 lets them fail instead",
    )


def _agent() -> str | None:
    """Whoever the call's span will name."""
    agent = speaker()
    if agent is not None:
        return agent.name
    carried = baggage.get_baggage(semconv.AGENT_NAME)
    return carried if isinstance(carried, str) else None


def _readdressed(client: Any, options: Any, policy: str, path: str) -> Any:
    changed = copy.copy(options)
    changed.url = path
    changed.params = {}
    changed.headers = {
        name: value
        for name, value in of.headers_of(options).items()
        if name.lower().startswith(_PASSED_HEADERS) and name.lower() not in _SET_BY_THE_CLIENT
    }
    changed.json_data = {**options.json_data, "model": policy}
    if isinstance(options.extra_json, Mapping) and "model" in options.extra_json:
        changed.extra_json = {**options.extra_json, "model": policy}
    # The user's limits, which their client knows and ours does not.
    changed.max_retries = options.get_max_retries(client.max_retries)
    if type(options.timeout).__name__ == "NotGiven":
        changed.timeout = client.timeout
    return changed


def _plain(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
