"""What a request asks, as span attributes. No header, key or query is ever recorded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.hosts import address
from lightning_instrumentation.messages import as_json
from lightning_instrumentation.wire.api import Api

_PLAIN: Mapping[str, str] = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "seed": semconv.REQUEST_SEED,
    "frequency_penalty": semconv.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": semconv.REQUEST_PRESENCE_PENALTY,
}
_OTHERS = frozenset({*_PLAIN, "n", "stop", "stop_sequences", "stream"})
_MOST_TOKENS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def attributes(api: Api, body: Mapping[str, Any], *, capture_content: bool, limit_bytes: int) -> dict[str, Any]:
    """Return what this request asks.

    Args:
        limit_bytes: messages or tools whose JSON is longer are left out and counted.
    """
    read: dict[str, Any] = {}
    for key in _MOST_TOKENS:
        if key in body and isinstance(body[key], int):
            read[semconv.REQUEST_MAX_TOKENS] = body[key]
            break
    if not _OTHERS.isdisjoint(body):
        _add_others(read, body)
    if capture_content:
        _add_content(read, semconv.INPUT_MESSAGES, api.input_messages(body), limit_bytes)
        if body.get("tools"):
            _add_content(read, semconv.TOOL_DEFINITIONS, body["tools"], limit_bytes)
    return read


def _add_others(read: dict[str, Any], body: Mapping[str, Any]) -> None:
    for key in _PLAIN.keys() & body.keys():
        if isinstance(body[key], (int, float)):
            read[_PLAIN[key]] = body[key]
    if isinstance(body.get("n"), int):
        read[semconv.REQUEST_CHOICE_COUNT] = body["n"]
    stop = body.get("stop") or body.get("stop_sequences")
    if stop:
        read[semconv.REQUEST_STOP_SEQUENCES] = [stop] if isinstance(stop, str) else [str(one) for one in stop]
    if body.get("stream"):
        read[semconv.REQUEST_STREAM] = True


def shared(api: Api, url: str, body: Mapping[str, Any], *, captured_by: str) -> Mapping[str, Any]:
    """Return what the calls of a program to one model have in common: the same object for all of them."""
    return _shared(api, captured_by, url, str(body.get("model") or ""))


@lru_cache(maxsize=256)
def _shared(api: Api, captured_by: str, url: str, model: str) -> Mapping[str, Any]:
    return {
        semconv.OPERATION: api.operation,
        semconv.PROVIDER_NAME: api.provider,
        semconv.API: api.name,
        semconv.CAPTURED_BY: captured_by,
        **_place(url, model),
    }


def place(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Where a call goes and to which model there."""
    return _place(url, str(body.get("model") or ""))


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
            f"the limit is max_body_bytes={limit_bytes} of lightning.init or LIGHTNING_MAX_BODY_BYTES",
        )
