"""The life of one model call: a CLIENT span from before it is sent until its answer is complete.

Every step is guarded: a failure here changes nothing for the caller. The attempts of one call (a client's own retries)
are one span. If a client library is layered on an HTTP library, the inner hook finds the outer one's call here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from lightning_instrumentation import semconv
from lightning_instrumentation.access.proof import BUSY_S, TOKEN_HEADER
from lightning_instrumentation.delivery.deferred import defer
from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.routing import hosts
from lightning_instrumentation.routing.hosts import HostTrust
from lightning_instrumentation.runtime import Runtime, runtime
from lightning_instrumentation.scope import current, current_agent
from lightning_instrumentation.spans import lifecycle
from lightning_instrumentation.spans.sequence import sequences
from lightning_instrumentation.wire import request
from lightning_instrumentation.wire.api import NOTHING, Api, Wanted

if TYPE_CHECKING:
    from lightning_instrumentation.spans.span_record import SpanRecord


@dataclass(frozen=True, slots=True)
class Extras:
    """What a call's host gets beyond the caller's request: nothing, unless the user named that host."""

    trust: HostTrust
    headers: Mapping[str, str]
    asked: Wanted


_NO_EXTRAS = Extras(HostTrust.UNTRUSTED, {}, NOTHING)


class ModelCall:
    """One model call and its span."""

    def __init__(
        self,
        runtime: Runtime,
        api: Api,
        span: SpanRecord,
        extras: Extras,
        *,
        secret: str | None,
        capture_content: bool,
        limit_bytes: int,
    ) -> None:
        self.api = api
        self.extras = extras
        self.asked = extras.asked
        """What the answer contains in addition, because we asked for it; the caller must not see it."""
        self.limit_bytes = limit_bytes
        """Longest answer that is read."""
        self.answer = api.answer()
        self.streamed = False
        """Whether the answer is a stream of events."""
        self.under_way = False
        """Whether the caller still has to read the answer: its body ends the span."""
        self.sent = 0
        """How often the request was sent."""
        # Popped by the code that ends the call; a list, because its ``pop`` needs no lock (a finalizer may run
        # anywhere).
        self._open: list[SpanRecord] = [span]
        self._runtime = runtime
        self._attributes = span.attributes
        self._secret = secret
        self._capture_content = capture_content

    def ended(self) -> None:
        """End the call; only the first end counts."""
        self._end(None)

    def failed(self, error: BaseException) -> None:
        """End the call with the error that was raised."""
        # A generator that is closed has not failed: its reader stopped early.
        self._end(None if isinstance(error, GeneratorExit) else error)

    def abandon(self) -> None:
        """End the call, because its answer was closed or dropped. The garbage collector may have done that, so this
        waits for no lock."""
        if self._open:
            defer(self._end_at, time.time_ns())

    def _end_at(self, end_ns: int) -> None:
        self._end(None, end_ns=end_ns)

    @property
    def open_span(self) -> SpanRecord | None:
        """Return the span; None once the call has ended."""
        return next(iter(self._open), None)

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the span that are in neither request nor answer."""
        self._attributes.update(attributes)

    def goes_to(self, extras: Extras, *, secret: str | None) -> None:
        """Change the host of a call of which nothing was sent."""
        self.extras, self.asked, self._secret, self.sent = extras, extras.asked, secret, 0

    def asks_nothing(self) -> None:
        """Note that the answer contains nothing in addition, as that of a call redirected to an untrusted host."""
        self.asked = NOTHING

    def refused(self, status: int) -> None:
        """End the call, because the server answered with an error, which the caller gets as an answer."""
        if self._open:
            guarded("chat-response", lifecycle.mark_failed, self._open[0], str(status), f"HTTP status {status}")
            self._attributes[semconv.HTTP_STATUS] = status
        self._end(None)

    def _end(self, error: BaseException | None, *, end_ns: int | None = None) -> None:
        try:
            span = self._open.pop()
        except IndexError:
            return
        guarded("chat-response", self._describe, span, error)
        lifecycle.close(self._runtime.tracer, span, end_ns=end_ns)

    def _describe(self, span: SpanRecord, error: BaseException | None) -> None:
        if self.streamed:
            self._attributes[semconv.STREAM_COMPLETE] = error is None and self.answer.finished
        if self.sent > 1:
            self._attributes[semconv.RETRIES] = self.sent - 1
        if error is not None:
            lifecycle.mark_error(span, error, secret=self._secret)
        elif self.answer.error is not None:
            message = self.answer.error.replace(self._secret, "[secret]") if self._secret else self.answer.error
            lifecycle.mark_failed(span, "server_error", message)
        if self.answer.begun:
            self._attributes.update(self.answer.attributes(capture_content=self._capture_content))
            attempt_id, response_id = span.get(semconv.ATTEMPT_ID), self._attributes.get(semconv.RESPONSE_ID)
            if attempt_id is not None and response_id is not None:
                sequences.answered(attempt_id, response_id)
            if self.api.name == "responses" and response_id is not None and self._was_routed():
                self._runtime.router.answered(response_id)
            if self.extras.trust is HostTrust.TRUSTED and semconv.response_token_ids(0) not in self._attributes:
                self._attributes[semconv.NO_TOKEN_IDS] = True

    def _was_routed(self) -> bool:
        return semconv.ROUTE_POLICY in self._attributes and semconv.ROUTE_FELL_BACK not in self._attributes


def begin(
    api: Api, url: str, body: Mapping[str, Any], *, captured_by: str, secret: str | None
) -> tuple[ModelCall, dict[str, str]] | None:
    """Start a call's span; return it with the headers to add, which are none for an untrusted host.

    OpenTelemetry's suppress key is ignored. Other instrumentations set it around the very calls that they record
    (Logfire's of the openai client does), to prevent a second recording below them, and exporters set it around their
    own requests, which are not model calls. We have ``silence`` instead, and the user has ``lt.uncaptured()``.

    Args:
        secret: removed from error messages.
    """
    started = runtime()
    return None if started is None else _begin(started, api, url, body, captured_by, secret)


def _begin(
    started: Runtime, api: Api, url: str, body: Mapping[str, Any], captured_by: str, secret: str | None
) -> tuple[ModelCall, dict[str, str]] | None:
    settings = started.settings
    shared = request.shared(api, url, body, captured_by=captured_by)
    asked = request.attributes(api, body, capture_content=settings.capture_content, limit_bytes=settings.max_body_bytes)
    state = current().state
    if state is not None:
        asked[semconv.STATE] = state
    span = lifecycle.open(
        started.tracer, f"{api.operation} {shared[semconv.REQUEST_MODEL]}", asked, shared, SpanKind.CLIENT
    )
    if span is None:
        return None
    extras = _extras(started, api, span, url, body)
    if started.router.is_late() and extras.trust is not HostTrust.DAEMON and current_agent() is not None:
        _note_late(started, span)
    call = ModelCall(
        started,
        api,
        span,
        extras,
        secret=secret,
        capture_content=settings.capture_content,
        limit_bytes=settings.max_body_bytes,
    )
    return call, dict(call.extras.headers)


def _note_late(started: Runtime, span: SpanRecord) -> None:
    span.set_attribute(semconv.ROUTE_LATE, True)
    failures.note(
        "selection-late",
        f"the daemon at {started.settings.endpoint} has not said yet whose calls it takes, and the first ones go to "
        "the model that the program names, whether or not a policy claims their agent",
    )


def _extras(started: Runtime, api: Api, span: SpanRecord, url: str, body: Mapping[str, Any]) -> Extras:
    """Return what to request in addition from the host at ``url``, and the headers for it: nothing for an untrusted
    host."""
    trust = started.hosts.trust(url)
    if trust is HostTrust.UNTRUSTED:
        return _NO_EXTRAS
    headers = {"traceparent": hosts.traceparent(span.trace_id, span.span_id)}
    scope = current()
    baggage = hosts.baggage(scope.identity, current_agent(), scope.state)
    if baggage:
        headers["baggage"] = baggage
    if trust is HostTrust.DAEMON:
        choice = hosts.choosing(capture_content=started.settings.capture_content)
        headers = hosts.repeated(headers) | choice | _key(started)
    asked = api.wanted(body) if trust is HostTrust.TRUSTED else NOTHING
    if asked:
        # What we remove from the answer must be decodable here.
        headers["accept-encoding"] = "identity"
    return Extras(trust, headers, asked)


def _key(started: Runtime) -> dict[str, str]:
    """Return the header with the daemon's token, for a client that was pointed at the daemon with any key."""
    try:
        token = started.router.access.opened(BUSY_S)
    except Exception:  # the daemon is down, or another process answers: the call may fail as it would without us
        return {}
    return {} if token is None else {TOKEN_HEADER: token}


def readdress(
    started: Runtime, call: ModelCall, url: str, body: Mapping[str, Any], *, secret: str | None
) -> dict[str, str]:
    """Change the destination of a call of which nothing was sent: correct its span and return the headers to add."""
    span = call.open_span
    if span is None:
        return {}
    call.describe(request.place(call.api, url, body))
    call.goes_to(_extras(started, call.api, span, url, body), secret=secret)
    return dict(call.extras.headers)


# -- an outer hook and the inner one ---------------------------------------------------------------------------------

_SILENT = object()
_current_call: ContextVar[Any] = ContextVar("lightning.carried_call", default=None)


def current_call() -> ModelCall | None:
    """Return the call that an outer hook has begun and whose request is being sent; None if there is none."""
    found = _current_call.get()
    return found if isinstance(found, ModelCall) else None


def is_silent() -> bool:
    """Whether the current request must be left alone: an outer hook records it, or the user has opted out."""
    return _current_call.get() is _SILENT or current().uncaptured


class _carrying:
    __slots__ = ("_before", "_what")

    def __init__(self, what: Any) -> None:
        self._what = what
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = _current_call.get()
        _current_call.set(self._what)

    def __exit__(self, *raised: object) -> None:
        _current_call.set(self._before)


def carrying(call: ModelCall) -> Any:
    """Return a context manager in which the next HTTP hook reads answers for ``call`` instead of beginning its own."""
    return _carrying(call)


def silence() -> Any:
    """Return a context manager in which inner HTTP hooks ignore requests."""
    return _carrying(_SILENT)
