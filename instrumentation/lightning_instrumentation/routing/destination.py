"""The destination of one model call: the gateway, if a policy claims its agent, else its original host.

The first hook that sees a call decides this once, so that the call's retries go to the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.routing.hosts import HostTrust
from lightning_instrumentation.runtime import Runtime, runtime
from lightning_instrumentation.scope import current_agent
from lightning_instrumentation.wire.apis import ending_of

_PATHS = ("/chat/completions", "/completions", "/responses", "/messages")
_KEPT_ELSEWHERE = ("previous_response_id", "conversation", "prompt", "background")
"""Fields of a Responses request that refer to state at another host."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The gateway as the destination of one call."""

    policy: str
    path: str
    """Below ``/v1``."""
    url: str
    own_url: str
    """The caller's original URL."""
    own_model: str

    def attributes(self) -> dict[str, Any]:
        """Return span attributes about the route; the URL is without credentials and query."""
        return {
            semconv.ROUTE_POLICY: self.policy,
            semconv.ROUTE_FROM_URL: _plain(self.own_url),
            semconv.ROUTE_FROM_MODEL: self.own_model,
        }


def claim_on(url: str) -> str | None:
    """Return the policy that claims the current agent's call to ``url``; None also if it goes to the daemon anyway."""
    started = runtime()
    if started is None or started.router.routes_nothing() or started.hosts.trust(url) is HostTrust.DAEMON:
        return None
    agent = current_agent()
    return started.router.policy_of(None if agent is None else agent.name)


def destination_of(url: str, body: Mapping[str, Any]) -> Destination | None:
    """Return the gateway as a call's destination in place of ``url``; None if the call keeps its destination."""
    started, policy = runtime(), claim_on(url)
    if started is None or policy is None:
        return None
    path = _servable(started, policy, urlsplit(url).path, body)
    if path is None or not started.router.proven():
        return None
    return Destination(policy, path, f"{started.settings.endpoint}/v1{path}", url, str(body.get("model", "")))


def not_routed(url: str) -> None:
    """Count and report once a call that cannot be routed although a policy claims its agent."""
    policy = claim_on(url)
    if policy is not None:
        _note_not_served(policy, _ending(urlsplit(url).path))


def fell_back(started: Runtime, destination: Destination, reason: object) -> None:
    """Record that the daemon was down for a routed call."""
    started.router.daemon_is_away()
    failures.note(
        "route-fallback",
        f"the daemon at {started.settings.endpoint} is away ({reason}): calls of policy {destination.policy!r} go to "
        "the model that the program names until it is back; LIGHTNING_ROUTE_FALLBACK=0 lets them fail instead",
    )


def _servable(started: Runtime, policy: str, path: str, body: Mapping[str, Any]) -> str | None:
    """Return the gateway's path for a call; None if the gateway cannot serve it, which is counted and reported once."""
    path = _ending(path)
    if path not in started.router.paths:
        _note_not_served(policy, path)
        return None
    elsewhere = [key for key in _KEPT_ELSEWHERE if body.get(key)] if path == "/responses" else []
    if elsewhere[:1] == ["previous_response_id"] and started.router.has_answered(body["previous_response_id"]):
        # The caller's host does not have that response, and would only say so; the gateway's refusal says why: it keeps
        # no conversations.
        elsewhere = elsewhere[1:]
    if elsewhere:
        failures.note(
            f"not-routed:{elsewhere[0]}",
            f"policy {policy!r} claims an agent whose call refers to what its own host keeps ({elsewhere[0]}): such "
            "calls go where they always went and are not trained",
        )
        return None
    return path


def _ending(path: str) -> str:
    return next((known for known in _PATHS if path.rstrip("/").endswith(known)), ending_of(path) or path)


def _note_not_served(policy: str, path: str) -> None:
    failures.note(
        f"not-routed:{path}",
        f"policy {policy!r} claims an agent that calls {path}, which the gateway does not serve: such calls go "
        "where they always went and are not trained",
    )


def _plain(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
