"""A request on its way out: whether it is a model call, and what it gets on top at hosts that the user named.

A request to any other host is not touched: neither its bytes nor its headers. A call of an agent that a policy claims
goes to the gateway instead, as a request of ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.gateway.destination import Destination, destination_of, fell_back
from lightning_instrumentation.gateway.hosts import HostTrust
from lightning_instrumentation.http.redirects import Redirects
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.telemetry.messages import encodable
from lightning_instrumentation.wire import call as wire
from lightning_instrumentation.wire.apis import api_at, api_of
from lightning_instrumentation.wire.call import ModelCall

if TYPE_CHECKING:
    from ssl import SSLContext

_ATTEMPT = "x-stainless-retry-count"
"""A client library on top counts its attempts here; one that is not the first follows one that may have been sent."""


@dataclass(slots=True)  # not frozen: that takes three times as long to make, and every request makes one
class Outgoing:
    call: ModelCall
    own: bool
    """False where a hook further out began the call and will end it."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """To add; none of them is set already."""
    document: dict[str, Any] | None = None
    """The body to send instead, None where it stays as it is."""
    destination: Destination | None = None
    """The gateway, where the call goes there; then ``document`` is what it gets."""
    own_document: Mapping[str, Any] = field(default_factory=dict)
    """The caller's body."""
    present: Container[str] = frozenset()
    """Names of the caller's headers."""

    def gateway_headers(self, caller: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a routed request; of the caller's, those that say in which form to answer."""
        started = runtime()
        token = started.router.access.token if started is not None else None
        passed = {
            name: value
            for name, value in caller.items()
            if name.lower() == "accept" or name.lower().startswith("x-stainless-")
        }
        authorization = {"authorization": f"Bearer {token}"} if token else {}
        return {**passed, **authorization, **self.headers, "content-type": "application/json"}

    def tls(self) -> SSLContext | None:
        """Return what looks at the gateway's certificate; None for a gateway without TLS."""
        started = runtime()
        return None if started is None else started.router.access.verified_by

    def may_fall_back(self, caller: Mapping[str, str]) -> bool:
        """Whether a routed call that met no daemon may go to the caller's own host; nothing was sent before."""
        started = runtime()
        return started is not None and started.router.fallback and caller.get(_ATTEMPT, "0") == "0"

    def fall_back(self, reason: object) -> Outgoing:
        """The daemon is away: return the call as it goes to the caller's own host."""
        started, destination = runtime(), self.destination
        if started is None or destination is None:
            return self
        fell_back(started, destination, reason)
        url, document = destination.own_url, self.own_document
        headers = wire.readdress(started, self.call, url, document, secret=urlsplit(url).query or None)
        self.call.describe({semconv.ROUTE_FELL_BACK: True})
        self.call.sent = 1
        return replace(self, destination=None, **_additions(self.call, headers, document, self.present))

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
        text = json.dumps(self.document, ensure_ascii=False, separators=(",", ":"))
        return encodable(text).encode()

    def without_ours(self, content: bytes) -> bytes:
        """Return the body without the fields that a hook further out has added, written as the openai client does."""
        document = json.loads(content)
        for name in self.call.api.additions(self.call.extras.asked):
            document.pop(name, None)
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    def redirects(
        self, sent: Mapping[str, str], before: Mapping[str, str], own_body: Callable[[], Any]
    ) -> Redirects | None:
        """Return what has to be asked where the request is sent on; None where it carries nothing of ours.

        Args:
            sent: its headers.
            before: what the caller had in their place.
            own_body: makes the caller's body.
        """
        extras = self.call.extras
        if extras.trust is HostTrust.UNTRUSTED:
            return None
        return Redirects(self.call, sent, before, own_body if extras.asked else None)


def concerns(method: str, path: str) -> bool:
    """Whether to look at a request at all; for most requests of a program this is all that happens."""
    return method.upper() == "POST" and api_at(path) is not None and not wire.is_silent()


def join() -> Outgoing | None:
    """Return the call of a hook further out, if this is its request: that hook has made of it what it should be."""
    call = wire.current_call()
    if call is None:
        return None
    call.sent += 1
    return Outgoing(call, own=False)


def going_out(
    library: str, url: object, body: Any, present: Container[str], *, may_be_routed: bool = True
) -> Outgoing | None:
    """Begin a call, where ``join`` has found none; None where the request is not a model call.

    Args:
        url: text, or what gives it with ``str``.
        body: what is sent: bytes, text, or the mapping that will become JSON; anything else cannot be read.
        present: names of headers that are set, in lower case.
        may_be_routed: False for a client that is closed: its caller shall hear so.
    """
    url = str(url)
    parts = urlsplit(url)
    document = _document(parts.path, body)
    api = api_of(parts.path, document)
    if api is None or document is None:
        return None
    destination = guarded("route", destination_of, url, document) if may_be_routed else None
    sent = {**document, "model": destination.policy} if destination is not None else document
    # A key in the query is quoted in the messages of connection errors.
    begun = wire.begin(
        api,
        url if destination is None else destination.url,
        sent,
        captured_by=library,
        secret=parts.query or None,
    )
    if begun is None:
        return None
    call, headers = begun
    call.sent = 1
    if destination is None:
        return Outgoing(call, True, **_additions(call, headers, document, present))
    call.describe(destination.attributes())
    return Outgoing(call, True, headers, sent, destination, document, present)


def _additions(
    call: ModelCall, headers: Mapping[str, str], document: Mapping[str, Any], present: Container[str]
) -> dict[str, Any]:
    """What the caller's own host gets: headers to add, and the body where there is something to add to it."""
    fields = call.api.additions(call.asked)
    return {
        "headers": {name: value for name, value in headers.items() if name not in present},
        "document": {**document, **fields} if fields else None,
    }


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
            "lt.init or LIGHTNING_MAX_BODY_BYTES",
        )
        return None
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
