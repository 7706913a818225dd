"""An outgoing request: whether it is a model call, and what is added to it at hosts that the user named.

A request to any other host is not changed: neither its bytes nor its headers. A call of an agent that a policy claims
goes to the gateway instead, as our own request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lightning_instrumentation import semconv
from lightning_instrumentation.clients.redirects import Redirects
from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.routing.destination import Destination, claim_on, destination_of, fell_back
from lightning_instrumentation.routing.hosts import HostTrust, added
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.spans.messages import encodable
from lightning_instrumentation.wire import call as wire
from lightning_instrumentation.wire.apis import api_at, api_of
from lightning_instrumentation.wire.call import ModelCall

if TYPE_CHECKING:
    from ssl import SSLContext

_ATTEMPT = "x-stainless-retry-count"
"""Header in which a client library above counts its attempts; a later attempt follows one that may have been sent."""


@dataclass(slots=True)  # not frozen: that takes three times as long to create, and every request creates one
class Outgoing:
    """One outgoing model call and the changes to its request."""

    call: ModelCall
    own: bool
    """False if an outer hook began the call and will end it."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers to set. Of those that the caller has set, only baggage is included: our members follow theirs."""
    document: dict[str, Any] | None = None
    """The body to send instead; None if it is unchanged."""
    destination: Destination | None = None
    """The gateway, if the call is routed; ``document`` is then the gateway's body."""
    own_document: Mapping[str, Any] = field(default_factory=dict)
    """The caller's body."""
    present: Mapping[str, str] = field(default_factory=dict)
    """The caller's headers, by names in lower case."""

    def gateway_headers(self, caller: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a routed request; of the caller's, only those that select the answer's format."""
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
        """Return the SSL context for the gateway; None for a gateway without TLS."""
        started = runtime()
        return None if started is None else started.router.access.verified_by

    def may_fall_back(self, caller: Mapping[str, str]) -> bool:
        """Whether a routed call that met no daemon may go to the caller's own host; nothing was sent before."""
        started = runtime()
        return started is not None and started.router.fallback and caller.get(_ATTEMPT, "0") == "0"

    def fall_back(self, reason: object) -> Outgoing:
        """Return the call, readdressed to the caller's own host because the daemon is down."""
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
        """End the call, unless an outer hook ends it."""
        if self.own:
            self.call.ended()

    def failed(self, error: BaseException) -> None:
        """End the call with an error, unless an outer hook ends it."""
        # An outer client may retry the request, so that client reports the failure.
        if self.own:
            self.call.failed(error)

    def refused(self, status: int) -> None:
        """End the call with an HTTP status of 400 or more, unless an outer hook ends it."""
        if self.own:
            self.call.refused(status)

    def body(self) -> bytes | None:
        """Return the changed body as compact JSON in UTF-8; None if it is unchanged."""
        if self.document is None:
            return None
        text = json.dumps(self.document, ensure_ascii=False, separators=(",", ":"))
        return encodable(text).encode()

    def without_ours(self, content: bytes) -> bytes:
        """Return the body without the fields that an outer hook has added, encoded as the openai client does."""
        document = json.loads(content)
        for name in self.call.api.additions(self.call.extras.asked):
            document.pop(name, None)
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    def redirects(
        self, sent: Mapping[str, str], before: Mapping[str, str], own_body: Callable[[], Any]
    ) -> Redirects | None:
        """Return the object to consult at redirects; None if the request carries nothing of ours.

        Args:
            sent: the request's headers.
            before: the caller's headers, some of which ours may have replaced.
            own_body: returns the caller's body.
        """
        extras = self.call.extras
        if extras.trust is HostTrust.UNTRUSTED:
            return None
        return Redirects(self.call, sent, before, own_body if extras.asked else None)


def concerns(method: str, path: str) -> bool:
    """Whether a request needs a closer look; for most requests of a program this is the only check."""
    return method.upper() == "POST" and api_at(path) is not None and not wire.is_silent()


def join() -> Outgoing | None:
    """Return the call of an outer hook if this is its request, which that hook has prepared; None if there is none."""
    call = wire.current_call()
    if call is None:
        return None
    call.sent += 1
    return Outgoing(call, own=False)


def going_out(
    library: str, url: object, body: Any, present: Mapping[str, str], *, may_be_routed: bool = True
) -> Outgoing | None:
    """Begin a call, if ``join`` has found none; None if the request is not a model call.

    Args:
        url: text, or an object whose ``str`` is the URL.
        body: what is sent: bytes, text, or a mapping to be encoded as JSON; anything else cannot be read.
        present: the headers that are set, by names in lower case.
        may_be_routed: False for a closed client, so that its caller gets its error, and for a client whose answers come
            from a test.
    """
    url = str(url)
    parts = urlsplit(url)
    document = _document(url, parts.path, body, may_be_routed=may_be_routed)
    api = api_of(parts.path, document)
    if api is None or document is None:
        return None
    destination = guarded("route", destination_of, url, document) if may_be_routed else None
    sent = {**document, "model": destination.policy} if destination is not None else document
    # The query may hold a key, and messages of connection errors quote it.
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
    call: ModelCall, headers: Mapping[str, str], document: Mapping[str, Any], present: Mapping[str, str]
) -> dict[str, Any]:
    """Return the additions for the caller's own host: headers, and the body if something is added to it."""
    fields = call.api.additions(call.asked)
    return {
        "headers": added(headers, present),
        "document": {**document, **fields} if fields else None,
    }


def _document(url: str, path: str, body: Any, *, may_be_routed: bool) -> dict[str, Any] | None:
    if isinstance(body, Mapping):
        return dict(body)
    if not isinstance(body, bytes | bytearray | str):
        failures.count("not-captured:request-body-unread")
        return None
    started = runtime()
    if started is None:
        return None
    limit = started.settings.max_body_bytes
    # A claimed call goes to the gateway whatever its length: the gateway itself refuses a body that is too long, and
    # the call then goes nowhere else.
    if len(body) > limit and not (may_be_routed and guarded("route", claim_on, url)):
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
