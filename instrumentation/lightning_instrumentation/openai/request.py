"""What a chat request asks, as span attributes, and what we add to it for hosts that the user named.

Nothing that the user set is overwritten, and no header, key or query is ever recorded.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lightning_instrumentation import semconv
from lightning_instrumentation.messages import as_json, input_messages

_PATH = "/chat/completions"
_RAW_RESPONSE_HEADER = "x-stainless-raw-response"
_PLAIN: Mapping[str, str] = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "seed": semconv.REQUEST_SEED,
    "frequency_penalty": semconv.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": semconv.REQUEST_PRESENCE_PENALTY,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What we asked the server for on top of what the caller asked: the caller must not see it."""

    token_ids: bool = False
    logprobs: bool = False

    def __bool__(self) -> bool:
        return self.token_ids or self.logprobs


def is_chat(options: Any) -> bool:
    return str(options.method).lower() == "post" and urlsplit(str(options.url)).path.endswith(_PATH)


def is_generation(options: Any) -> bool:
    """Whether it is a kind of model call that is not captured yet."""
    return str(options.method).lower() == "post" and urlsplit(str(options.url)).path.endswith(
        ("/responses", "/completions")
    )


def url_of(client: Any, options: Any) -> str:
    url = str(options.url)
    return url if "://" in url else str(client.base_url).rstrip("/") + "/" + url.lstrip("/")


def body_of(options: Any) -> dict[str, Any]:
    """Return the request's JSON as it will be sent: the user's ``extra_body`` counts over the arguments."""
    body = options.json_data
    extra = options.extra_json
    return {**(body if isinstance(body, Mapping) else {}), **(extra if isinstance(extra, Mapping) else {})}


def headers_of(options: Any) -> dict[str, str]:
    """Headers of this request alone; the placeholder for "not given" is no mapping."""
    return dict(options.headers) if isinstance(options.headers, Mapping) else {}


def is_unread(options: Any) -> bool:
    """Whether the caller will read the answer off the wire itself (``with_streaming_response``)."""
    return any(k.lower() == _RAW_RESPONSE_HEADER and v == "stream" for k, v in headers_of(options).items())


def attributes(url: str, body: Mapping[str, Any], *, capture_content: bool) -> dict[str, Any]:
    parts = urlsplit(url)
    read: dict[str, Any] = {
        semconv.OPERATION: semconv.CHAT,
        semconv.PROVIDER_NAME: "openai",
        semconv.REQUEST_MODEL: str(body.get("model", "")),
        semconv.SERVER_ADDRESS: parts.hostname or "",
    }
    if parts.port:
        read[semconv.SERVER_PORT] = parts.port
    for key, name in _PLAIN.items():
        if isinstance(body.get(key), (int, float)):
            read[name] = body[key]
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    if isinstance(most, int):
        read[semconv.REQUEST_MAX_TOKENS] = most
    if isinstance(body.get("n"), int):
        read[semconv.REQUEST_CHOICE_COUNT] = body["n"]
    if body.get("stop"):
        stop = body["stop"]
        read[semconv.REQUEST_STOP_SEQUENCES] = [stop] if isinstance(stop, str) else [str(one) for one in stop]
    if body.get("stream"):
        read[semconv.REQUEST_STREAM] = True
    if capture_content:
        read[semconv.INPUT_MESSAGES] = as_json(input_messages(body.get("messages") or ()))
        if body.get("tools"):
            read[semconv.TOOL_DEFINITIONS] = as_json(body["tools"])
    return read


def wanted(body: Mapping[str, Any]) -> Wanted:
    """Return what the user left open of what we need; what they set, whatever it is, stays."""
    return Wanted(token_ids="return_token_ids" not in body, logprobs="logprobs" not in body)


def copied(options: Any) -> Any:
    """A copy of the options that may be changed: the caller's own stay as they are."""
    return copy.copy(options)


def with_additions(client: Any, options: Any, headers: Mapping[str, str], asked: Wanted) -> Any:
    """Return a copy of the options with trace headers and, where asked, the request for token ids and logprobs."""
    changed = copied(options)
    merged = headers_of(options)
    present = {name.lower() for name in merged} | {
        name.lower() for name in getattr(client, "_custom_headers", None) or {}
    }
    for name, value in headers.items():
        if value and name not in present:
            merged[name] = value
    if merged:
        changed.headers = merged
    if asked:
        extra = dict(options.extra_json) if isinstance(options.extra_json, Mapping) else {}
        if asked.token_ids:
            extra["return_token_ids"] = True
        if asked.logprobs:
            extra["logprobs"] = True
        changed.extra_json = extra
    return changed
