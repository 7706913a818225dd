"""A request as span attributes. No header, key, or query is ever recorded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.routing.hosts import address
from lightning_instrumentation.spans.messages import as_json
from lightning_instrumentation.wire.api import Api
from lightning_instrumentation.wire.sampling import sampling

_MOST_TOKENS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def attributes(api: Api, body: Mapping[str, Any], *, capture_content: bool, limit_bytes: int) -> dict[str, Any]:
    """Return the request's attributes.

    Args:
        limit_bytes: messages or tools whose JSON is longer are left out and counted.
    """
    asked = api.asked(body)
    read = sampling(asked)
    for key in _MOST_TOKENS:
        if key in asked and isinstance(asked[key], int):
            read[semconv.REQUEST_MAX_TOKENS] = asked[key]
            break
    if asked.get("stream"):
        read[semconv.REQUEST_STREAM] = True
    if capture_content:
        _add_content(read, semconv.INPUT_MESSAGES, api.input_messages(body), limit_bytes)
        if asked.get("tools"):
            _add_content(read, semconv.TOOL_DEFINITIONS, asked["tools"], limit_bytes)
    return read


def shared(api: Api, url: str, body: Mapping[str, Any], *, captured_by: str) -> Mapping[str, Any]:
    """Return the attributes that a program's calls to one model have in common: the same object for all of them."""
    return _shared(api, captured_by, url, api.model(url, body))


@lru_cache(maxsize=256)
def _shared(api: Api, captured_by: str, url: str, model: str) -> Mapping[str, Any]:
    return {
        semconv.OPERATION: api.operation,
        semconv.PROVIDER_NAME: api.provider,
        semconv.API: api.name,
        semconv.CAPTURED_BY: captured_by,
        **_place(url, model),
    }


def place(api: Api, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a call's host and the model there."""
    return _place(url, api.model(url, body))


def _place(url: str, model: str) -> dict[str, Any]:
    host, port = address(url)
    read: dict[str, Any] = {semconv.REQUEST_MODEL: model, semconv.SERVER_ADDRESS: host}
    if port:
        read[semconv.SERVER_PORT] = port
    return read


def _add_content(read: dict[str, Any], name: str, value: Any, limit_bytes: int) -> None:
    text = as_json(value)
    if len(text) <= limit_bytes:
        read[name] = text
    else:
        failures.note(
            "request-over-limit",
            f"{name} of a request is {len(text)} characters long and is left out; "
            f"the limit is max_body_bytes={limit_bytes} of lt.init or LIGHTNING_MAX_BODY_BYTES",
        )
