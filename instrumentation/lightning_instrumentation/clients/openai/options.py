"""The openai client's request options: what is read from them, and what is added for hosts that the user named.

Nothing that the user set is overwritten, and their own options object is not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from lightning_instrumentation.routing.hosts import added
from lightning_instrumentation.spans.otlp import ByIdentity
from lightning_instrumentation.wire.api import Api
from lightning_instrumentation.wire.apis import NotCaptured, api_at

_SHORTEST_KEY = 8
"""In characters."""

# Formatting a URL costs as much as encoding a message, and so does hashing one.
_as_base: ByIdentity[Any, str] = ByIdentity(lambda url: str(url).rstrip("/") + "/", most=64)
"""A client's base URL with a trailing slash."""


def api_of(options: Any) -> Api | None:
    """Return the wire format of a request; None if it is not a model call, or has a raw body."""
    if str(options.method).lower() != "post" or not isinstance(options.json_data, Mapping):
        return None
    return _promised(str(options.url))


@lru_cache(maxsize=256)
def _promised(url: str) -> Api | None:
    api = api_at(urlsplit(url).path)
    return None if isinstance(api, NotCaptured) else api  # the HTTP library's hook counts it


def url_of(client: Any, options: Any) -> str:
    """Return the full URL of a request."""
    url = str(options.url)
    return url if "://" in url else _as_base(client.base_url) + url.lstrip("/")


def body_of(options: Any) -> dict[str, Any]:
    """Return the request's JSON as it will be sent: the user's ``extra_body`` overrides the arguments."""
    extra = options.extra_json
    return {**options.json_data, **(extra if isinstance(extra, Mapping) else {})}


def key_of(client: Any) -> str | None:
    """Return the client's API key; None if it has none, or only a word in a key's place (``x``, ``EMPTY``)."""
    key = getattr(client, "api_key", None)
    return key if isinstance(key, str) and len(key) >= _SHORTEST_KEY else None


def timeout_of(client: Any, options: Any) -> Any:
    """Return the timeouts of a request: the client's, unless it has its own."""
    return client.timeout if type(options.timeout).__name__ == "NotGiven" else options.timeout


def headers_of(options: Any) -> dict[str, str]:
    """Return the headers of this request only; the placeholder for "not given" is not a mapping."""
    return dict(options.headers) if isinstance(options.headers, Mapping) else {}


def with_additions(client: Any, options: Any, headers: Mapping[str, str], fields: Mapping[str, Any]) -> Any:
    """Return a copy of the options with more headers and, at the top of the body, more fields."""
    changed = copy.copy(options)
    merged = headers_of(options)
    own = {**(getattr(client, "_custom_headers", None) or {}), **merged}
    ours = added(headers, {name.lower(): value for name, value in own.items()})
    merged = {name: value for name, value in merged.items() if name.lower() not in ours} | ours
    if merged:
        changed.headers = merged
    if fields:
        extra = options.extra_json if isinstance(options.extra_json, Mapping) else {}
        changed.extra_json = {**extra, **fields}
    return changed
