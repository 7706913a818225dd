"""The life of one chat request: a CLIENT span from before it is sent until its answer is complete.

Retries inside the client are one call. Every step is guarded: a failure in here changes nothing for the caller.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind

from lightning_instrumentation import propagation, semconv, spans
from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.hosts import Standing
from lightning_instrumentation.messages import field
from lightning_instrumentation.openai import request
from lightning_instrumentation.openai.answer import Answer
from lightning_instrumentation.openai.gateway import is_gateway_client
from lightning_instrumentation.openai.hiding import hide, hide_raw, is_ours_alone
from lightning_instrumentation.openai.request import Wanted
from lightning_instrumentation.openai.route import Route, fell_back, route_of
from lightning_instrumentation.runtime import Runtime, runtime
from lightning_instrumentation.scope import current, speaker

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_SUPPRESS = getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")


class ChatCall:
    def __init__(self, span: Span, asked: Wanted, *, secret: str | None, unread: bool, capture_content: bool) -> None:
        self.unread = unread
        """The caller reads the answer off the wire: nothing of it is seen here."""
        self._span: Span | None = span
        self._asked = asked
        self._secret = secret
        self._capture_content = capture_content
        self._answer = Answer()
        self._ending = threading.Lock()
        self.route: Route | None = None
        """Set where the call goes to the daemon's gateway instead of to the caller's host."""

    @property
    def seen(self) -> bool:
        """Whether an answer was taken already."""
        return bool(self._answer.choices)

    def add(self, response: Any) -> None:
        """Take a whole answer and clean it: cleaned it must be even where it could not be read."""
        try:
            self._answer.add(response)
        finally:
            if self._asked:
                hide(response, self._asked)

    def add_raw(self, http_response: Any) -> None:
        decoded = json.loads(http_response.content)
        try:
            self._answer.add(decoded)
        finally:
            if self._asked:
                hide_raw(http_response, decoded, self._asked)

    def add_chunk(self, chunk: Any) -> bool:
        """Take a chunk and clean it; False where the caller would not have got it without us."""
        first = not self._answer.choices
        self.add(chunk)
        return first or not is_ours_alone(chunk, self._asked)

    def unrouted(self, reason: object) -> Any:
        """Take the call back from a daemon that is away; return the options with which it goes to the caller's host."""
        route, self.route = self.route, None
        assert route is not None
        options = guarded("route-fallback", self._take_back, route, reason)
        return route.own_options if options is None else options

    def _take_back(self, route: Route, reason: object) -> Any:
        started, span = runtime(), self._span
        if started is None or span is None:
            return None
        fell_back(started, route, reason)
        own = request.attributes(route.own_url, route.own_body, capture_content=False)
        moved = (semconv.REQUEST_MODEL, semconv.SERVER_ADDRESS, semconv.SERVER_PORT)
        span.set_attributes({name: own[name] for name in moved if name in own} | {semconv.ROUTE_FELL_BACK: True})
        self._secret = _secret(route.own_client)
        options, self._asked = _addressed(
            started, span, route.own_client, route.own_options, route.own_url, route.own_body
        )
        return _watching_parser(options, self)

    def ended(self) -> None:
        self._end(None, stream=False)

    def failed(self, error: BaseException) -> None:
        # A response that the client could not turn into what was asked (cut off, refused) still was sampled.
        completion = getattr(error, "completion", None)
        if completion is not None and not self._answer.choices:
            guarded("chat-response", self.add, completion)
        self._end(error, stream=False)

    def stream_ended(self, error: BaseException | None = None) -> None:
        """Called at the end, on an error and on ``close``: the first one counts."""
        self._end(error, stream=True)

    def stream_forgotten(self, end_ns: int) -> None:
        """Called after the stream was given up at ``end_ns`` without any of that."""
        self._end(None, stream=True, end_ns=end_ns)

    @property
    def has_ended(self) -> bool:
        return self._span is None

    def _end(self, error: BaseException | None, *, stream: bool, end_ns: int | None = None) -> None:
        with self._ending:
            span, self._span = self._span, None
        if span is not None:
            guarded("chat-response", self._describe, span, error, stream)
            spans.end(span, end_ns=end_ns)

    def _describe(self, span: Span, error: BaseException | None, stream: bool) -> None:
        if stream:
            span.set_attribute(semconv.STREAM_COMPLETE, error is None and self._answer.finished)
        if error is not None and not isinstance(error, GeneratorExit):
            spans.mark_error(span, error, secret=self._secret)
        if self._answer.choices:
            span.set_attributes(self._answer.attributes(capture_content=self._capture_content))


def begin(client: Any, options: Any) -> tuple[ChatCall, Any] | None:
    """Start the span of a chat request and return it with the options to send; None for any other request."""
    if is_gateway_client(client):
        return None  # a routed call, which is recorded already
    if not request.is_chat(options):
        if request.is_generation(options) and current().span is not None:
            failures.note(
                f"not-captured:{options.url}",
                f"calls to {options.url} are not captured; use chat completions for what should be trained",
            )
        return None
    if otel_context.get_value(_SUPPRESS) or otel_context.get_value("suppress_instrumentation"):
        return None
    started = runtime()
    return None if started is None else _begin(started, client, options)


def _begin(started: Runtime, client: Any, options: Any) -> tuple[ChatCall, Any] | None:
    body = request.body_of(options)
    url = request.url_of(client, options)
    capture_content = started.settings.capture_content
    unread = request.is_unread(options)
    route = guarded("route", route_of, started, client, options, url, body)
    if route is not None:
        client, options, url, body = route.client, route.options, route.url, route.body
    attributes = request.attributes(url, body, capture_content=capture_content)
    if route is not None:
        attributes |= route.attributes()
    span = spans.begin(started, f"{semconv.CHAT} {body.get('model', '')}", attributes, kind=SpanKind.CLIENT)
    if span is None:
        return None
    options, asked = _addressed(started, span, client, options, url, body)
    call = ChatCall(span, asked, secret=_secret(client), unread=unread, capture_content=capture_content)
    call.route = route
    return call, _watching_parser(options, call)


def _addressed(started: Runtime, span: Span, client: Any, options: Any, url: str, body: Any) -> tuple[Any, Wanted]:
    """Return the options with what the host at ``url`` may be sent beside them, and what it was asked on top."""
    standing = started.hosts.standing(url)
    asked = Wanted()
    if standing is not Standing.STRANGER:
        headers = {
            "traceparent": propagation.traceparent(span.get_span_context()),
            "baggage": propagation.baggage(current().identity, speaker()),
        }
        if standing is Standing.TRUSTED and not request.is_unread(options):
            asked = request.wanted(body)
        options = request.with_additions(client, options, headers, asked)
    return options, asked


def _secret(client: Any) -> str | None:
    secret = field(client, "api_key")
    return secret if isinstance(secret, str) else None


def _watching_parser(options: Any, call: ChatCall) -> Any:
    """Let the caller's own parser of the response run after we have seen what it parses: it may raise."""
    parse = options.post_parser
    if not callable(parse):
        return options

    def see_then_parse(response: Any) -> Any:
        if not call.seen:
            guarded("chat-response", call.add, response)
        return parse(response)

    changed = request.copied(options)
    changed.post_parser = see_then_parse
    return changed


def answered(call: ChatCall, response: Any, *, stream: bool) -> None:
    """Record what ``request`` returned: a model object, a raw response that was read or not, or a stream."""
    from lightning_instrumentation.openai.stream import tap

    raw = getattr(response, "http_response", None)
    if call.unread:
        failures.count("not-captured:with_streaming_response")
    elif stream:
        reading = response if raw is None else response.parse()
        if hasattr(reading, "_iterator"):
            tap(reading, call)
            return
    elif raw is not None:
        call.add_raw(raw)
    elif field(response, "choices") is not None and not call.seen:
        call.add(response)
    call.ended()
