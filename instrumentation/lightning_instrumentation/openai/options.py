"""The openai client's request options: what is read from them and what is added for hosts that the user named.

Nothing that the user set is overwritten, and their own options object stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from lightning_instrumentation.wire.api import Api
from lightning_instrumentation.wire.apis import api_at

_bases: dict[int, tuple[Any, str]] = {}
"""Base URLs with their text; the URL stands beside it, so that its number stays its own."""
_MOST_BASES = 64


def api_of(options: Any) -> Api | None:
    """Return the wire format of a request; None where it is no model call, or has a body that is sent as it is."""
    if str(options.method).lower() != "post" or not isinstance(options.json_data, Mapping):
        return None
    return _promised(str(options.url))


@lru_cache(maxsize=256)
def _promised(url: str) -> Api | None:
    return api_at(urlsplit(url).path)


def url_of(client: Any, options: Any) -> str:
    url = str(options.url)
    return url if "://" in url else _base_of(client) + url.lstrip("/")


def _base_of(client: Any) -> str:
    """Return the client's base URL with a slash at its end. Writing a URL costs as much as encoding a message."""
    url = client.base_url
    known = _bases.get(id(url))
    if known is None:
        if len(_bases) >= _MOST_BASES:
            _bases.clear()
        known = _bases[id(url)] = url, str(url).rstrip("/") + "/"
    return known[1]


def body_of(options: Any) -> dict[str, Any]:
    """Return the request's JSON as it will be sent: the user's ``extra_body`` counts over the arguments."""
    extra = options.extra_json
    return {**options.json_data, **(extra if isinstance(extra, Mapping) else {})}


def key_of(client: Any) -> str | None:
    key = getattr(client, "api_key", None)
    return key if isinstance(key, str) and key else None


def headers_of(options: Any) -> dict[str, str]:
    """Headers of this request alone; the placeholder for "not given" is no mapping."""
    return dict(options.headers) if isinstance(options.headers, Mapping) else {}


def with_fields(options: Any, fields: Mapping[str, Any]) -> Any:
    """Return a copy of the options with more fields at the top of the body."""
    changed = copy.copy(options)
    extra = options.extra_json
    changed.extra_json = {**extra, **fields} if isinstance(extra, Mapping) else fields
    return changed
