"""Which policy claims which agent, according to the daemon's ``GET {endpoint}/lightning/selection``.

The daemon matches by the same rule (``PolicyConfig.claims``). A call without an agent is never routed, although the
daemon trains those that reach it if a policy claims ``*``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from lightning_instrumentation.access.proof import Access, authorization

PATH = "/lightning/selection"
_TIMEOUT_S = 2.0
_LONGEST_ANSWER = 1 << 20


def fits(agent: str, patterns: Iterable[str]) -> bool:
    """Whether an agent's name is one of the names, or fits one of the shell-style patterns; case matters."""
    return any(agent == pattern or fnmatchcase(agent, pattern) for pattern in patterns)


class SelectionError(RuntimeError):
    """The endpoint's answer is not a selection; ``status`` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Selection:
    """The daemon's policies and paths."""

    policies: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Name and agent patterns of each policy; the first match claims the agent."""
    paths: frozenset[str] = frozenset({"/chat/completions"})
    """Paths that the gateway serves below ``/v1``."""

    def policy_of(self, agent: str) -> str | None:
        """Return the first policy that claims the agent; None if none does."""
        for name, patterns in self.policies:
            if fits(agent, patterns):
                return name
        return None


def fetch_selection(access: Access) -> Selection:
    """Fetch the selection from the daemon.

    Raises:
        OSError: nothing answers there, or something other than the daemon does.
        http.client.HTTPException: what answers does not speak HTTP.
        SelectionError: the answer is not a selection.
    """
    connection, token = access.open(_TIMEOUT_S)
    headers = {"Accept": "application/json", "User-Agent": "lightning-trainer", "Connection": "close"}
    headers |= authorization(token)
    try:
        connection.request("GET", urlsplit(access.endpoint).path.rstrip("/") + PATH, headers=headers)
        response = connection.getresponse()
        body = response.read(_LONGEST_ANSWER + 1)
        status = response.status
    finally:
        connection.close()
    if status != 200:
        raise SelectionError(f"it answered {status} to GET {PATH}", status)
    if len(body) > _LONGEST_ANSWER:
        raise SelectionError(f"its selection is longer than {_LONGEST_ANSWER} bytes", status)
    try:
        return read_selection(json.loads(body))
    except (ValueError, KeyError, TypeError) as error:
        raise SelectionError(f"its selection cannot be read ({type(error).__name__}: {error})", status) from error


def read_selection(document: Any) -> Selection:
    """Parse ``{"policies": [{"name": ..., "agents": [...]}], "paths": [...]}``; other keys are a newer daemon's.

    Raises:
        KeyError, TypeError: a field is missing or has another type.
    """
    policies = tuple(
        (_text(policy["name"]), tuple(_text(pattern) for pattern in policy["agents"]))
        for policy in document["policies"]
    )
    if "paths" not in document:
        return Selection(policies)
    return Selection(policies, frozenset(_text(path) for path in document["paths"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
