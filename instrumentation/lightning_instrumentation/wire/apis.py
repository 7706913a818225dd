"""Which wire format a request has: known by the end of its path and by the fields of its body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_instrumentation.wire.api import Api
from lightning_instrumentation.wire.chat import ChatCompletions
from lightning_instrumentation.wire.completions import Completions
from lightning_instrumentation.wire.messages_api import Messages
from lightning_instrumentation.wire.responses import Responses

# The longer ending first: every chat path also ends like a completion's.
_BY_ENDING: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", ChatCompletions()),
    ("/completions", Completions()),
    ("/responses", Responses()),
    ("/v1/messages", Messages()),
)


def api_at(path: str) -> Api | None:
    """Return the format that a path without query promises."""
    path = path.rstrip("/")
    for ending, api in _BY_ENDING:
        if path.endswith(ending):
            return api
    return None


def api_of(path: str, body: Any) -> Api | None:
    """Return the format of a request, None where it is no model call."""
    api = api_at(path)
    return api if api is not None and isinstance(body, Mapping) and api.fits(body) else None
