"""A request on its way out: whether it is a model call, and what it gets on top at hosts that the user named.

A request to any other host is not touched: neither its bytes nor its headers.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from lightning_instrumentation.failures import failures
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.wire import call as wire
from lightning_instrumentation.wire.apis import api_at, api_of
from lightning_instrumentation.wire.call import ModelCall


@dataclass(frozen=True, slots=True)
class Outgoing:
    call: ModelCall
    own: bool
    """False where a hook further out began the call and will end it."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """To add; none of them is set already."""
    document: dict[str, Any] | None = None
    """The body to send instead, None where it stays as it is."""

    def ended(self) -> None:
        if self.own:
            self.call.ended()

    def failed(self, error: BaseException) -> None:
        # A client further out may send the request again: it is the one to say that the call failed.
        if self.own:
            self.call.failed(error)

    def refused(self, status: int) -> None:
        if self.own:
            self.call.refused(status)

    def body(self) -> bytes | None:
        if self.document is None:
            return None
        return json.dumps(self.document, ensure_ascii=False, separators=(",", ":")).encode()


def concerns(method: str, path: str) -> bool:
    """Whether to look at a request at all; for most requests of a program this is all that happens."""
    return method.upper() == "POST" and api_at(path) is not None and not wire.is_silent()


def going_out(library: str, url: str, body: Any, present: Container[str]) -> Outgoing | None:
    """Begin a call, or join the one of a hook further out; None where the request is no model call.

    Args:
        body: what is sent: bytes, text, or the mapping that will become JSON; anything else cannot be read.
        present: names of headers that are set, in lower case.
    """
    joined = wire.carried()
    if joined is not None:
        joined.sent += 1
        return Outgoing(joined, own=False)
    parts = urlsplit(url)
    document = _document(parts.path, body)
    api = api_of(parts.path, document)
    if api is None or document is None:
        return None
    # A key in the query is quoted in the messages of connection errors.
    begun = wire.begin(api, url, document, captured_by=library, secret=parts.query or None)
    if begun is None:
        return None
    call, headers = begun
    call.sent = 1
    additions = api.additions(call.asked)
    return Outgoing(
        call,
        True,
        {name: value for name, value in headers.items() if name not in present},
        {**document, **additions} if additions else None,
    )


def _document(path: str, body: Any) -> dict[str, Any] | None:
    if isinstance(body, Mapping):
        return dict(body)
    if not isinstance(body, bytes | bytearray | str):
        failures.count("not-captured:request-body-unread")
        return None
    started = runtime()
    limit = started.settings.max_body_bytes if started is not None else 0
    if len(body) > limit:
        failures.note(
            "request-over-limit",
            f"a request of {len(body)} bytes to {path} is not recorded; the limit is max_body_bytes={limit} of "
            "lightning.init or LIGHTNING_MAX_BODY_BYTES",
        )
        return None
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
