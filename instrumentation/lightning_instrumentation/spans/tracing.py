"""Our own tracer on OpenTelemetry's SDK: separate from the user's provider, limits, sampler, and random numbers.

Nothing in the user's OpenTelemetry setup changes what is recorded here (no ``OTEL_*`` limit or sampler applies), and
nothing here changes theirs: the provider is never the global one, and ids do not come from the shared ``random``, so a
program that seeds it draws the same numbers with and without us, and two seeded processes never share a trace id.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import guarded
from lightning_instrumentation.redaction.spans import Editor
from lightning_instrumentation.scope import Identity, current, current_agent
from lightning_instrumentation.spans.otlp import RequestWriter
from lightning_instrumentation.spans.sequence import sequences
from lightning_instrumentation.spans.span_record import SpanRecord

_NOTHING: Mapping[str, Any] = {}


class OwnIdGenerator(IdGenerator):
    """Draws ids from our own random numbers, seeded by the operating system and independent of ``random.seed``. A fork
    makes a new generator."""

    def __init__(self) -> None:
        self._bits = random.Random().getrandbits

    def generate_span_id(self) -> int:
        return self._bits(64) or 1

    def generate_trace_id(self) -> int:
        return self._bits(128) or 1

    def is_trace_id_random(self) -> bool:
        return True


class RecordsAll(Sampler):
    """Records every span. Unlike the SDK's samplers, it does not read the parent's trace state: our spans have none."""

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, kind: Any = None, attributes: Any = None, *others: Any
    ) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self) -> str:
        return "RecordsAll"


class Tracer:
    """Starts spans and passes each one, when it ends, to ``put`` as a serialized request of its own.

    Requests are combined by plain concatenation. A fork makes a new tracer, with new random numbers.

    Args:
        put: receives an ended span's request.
        started: called for each span that starts, without arguments.
    """

    def __init__(
        self, service_name: str, put: Callable[[bytes], None], started: Callable[[], None], editor: Editor
    ) -> None:
        resource = _resource(service_name)
        self._started = started
        self._ids = OwnIdGenerator()
        provider = TracerProvider(
            sampler=RecordsAll(),
            resource=Resource(resource),
            shutdown_on_exit=False,
            id_generator=self._ids,
            span_limits=_UNLIMITED,
            meter_provider=NoOpMeterProvider(),
        )
        writer = RequestWriter(resource, semconv.CLIENT_SCOPE, client_version())
        self._outbound = _Outbound(writer, put, editor)
        provider.add_span_processor(self._outbound)
        self._tracer = provider.get_tracer(semconv.CLIENT_SCOPE, client_version())

    def start(
        self,
        name: str,
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        new_trace: bool = False,
        start_ns: int | None = None,
    ) -> Span:
        """Start a span below our current one, or a new trace.

        An active span of the user's is not its parent (theirs may never reach our store), but the root of our trace
        links to it.
        """
        parent = None if new_trace else current().span
        context = trace.set_span_in_context(parent, Context()) if parent is not None else Context()
        links = () if parent is not None else _link_to_users_span()
        known = {**(guarded("identity", _identity_of, attributes) or {}), **attributes}
        self._begins(known, known)
        return self._tracer.start_span(name, context, kind, known, links, start_ns)

    def open(self, name: str, attributes: dict[str, Any], shared: Mapping[str, Any], kind: SpanKind) -> SpanRecord:
        """Start a span below the current one that is never exposed outside this client; ``close`` ends it.

        Args:
            attributes: owned by the span from now on; they do not include attempt and agent.
            shared: see ``SpanRecord.shared``.
        """
        parent = current().span
        above = None if parent is None else parent.get_span_context()
        if above is not None and not above.is_valid:
            above = None
        ids = self._ids
        trace_id = ids.generate_trace_id() if above is None else above.trace_id
        links = ()
        if otel_context.get_current():  # otherwise the program does not use OpenTelemetry itself
            users = trace.get_current_span().get_span_context()
            if users.is_valid:
                attributes[semconv.OUTER_SPAN] = f"{users.trace_id:032x}-{users.span_id:016x}"
                links = (Link(users),) if above is None else ()
        identity = guarded("identity", identity_attributes) or _NOTHING
        self._begins(attributes, identity)
        return SpanRecord(
            *(name, trace_id, ids.generate_span_id(), above, kind, attributes, [], links, StatusCode.UNSET, ""),
            start_ns=time.time_ns(),
            shared=(identity, shared),
        )

    def _begins(self, attributes: dict[str, Any], identity: Mapping[str, Any]) -> None:
        """Count a span that begins here, and number it among those of its attempt."""
        self._started()
        attempt_id = identity.get(semconv.ATTEMPT_ID)
        if isinstance(attempt_id, str):
            guarded("sequence", _number, attributes, attempt_id)

    def close(self, span: SpanRecord, end_ns: int | None = None) -> None:
        """End a span from ``open``."""
        span.end_ns = time.time_ns() if end_ns is None else end_ns
        self._outbound.leave(span)


class _Outbound(SpanProcessor):
    """The exporter of ended spans: redact, encode, put."""

    def __init__(self, writer: RequestWriter, put: Callable[[bytes], None], editor: Editor) -> None:
        self._writer = writer
        self._put = put
        self._editor = editor
        self._pid = os.getpid()

    def on_end(self, span: ReadableSpan) -> None:
        record = guarded("export", SpanRecord.of, span)
        if record is not None:
            self.leave(record)

    def leave(self, span: SpanRecord) -> None:
        # A forked child has copies of its parent's open spans; only the parent may end them.
        if os.getpid() == self._pid:
            guarded("export", self._write, span)

    def _write(self, span: SpanRecord) -> None:
        self._editor.edit(span)
        if semconv.SEQUENCE in span.attributes:
            _say_how_many_started(span)
        self._put(self._writer.request(span))


def identity_attributes() -> Mapping[str, str]:
    """Return attempt and agent of the current scope, or of incoming baggage if this process has no attempt.

    The same identity gives the same object each time.
    """
    identity = current().identity
    incoming = () if identity is not None else _from_baggage()
    agent = current_agent()
    return _identity_attributes(identity, incoming, *((agent.name, agent.source) if agent is not None else ()))


@lru_cache(maxsize=1024)
def _identity_attributes(
    identity: Identity | None, incoming: tuple[tuple[str, str], ...], agent: str | None = None, source: str = ""
) -> Mapping[str, str]:
    attributes = dict(incoming) if identity is None else identity.attributes()
    if agent is not None:
        attributes[semconv.AGENT_NAME] = agent
        attributes[semconv.AGENT_SOURCE] = source
    return attributes


def _from_baggage() -> tuple[tuple[str, str], ...]:
    incoming = baggage.get_all() if otel_context.get_current() else None
    return tuple((key, str(incoming[key])) for key in semconv.BAGGAGE_KEYS if key in incoming) if incoming else ()


def _identity_of(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return the identity of a span with these attributes, which take precedence."""
    identity = dict(identity_attributes())
    if semconv.AGENT_NAME in attributes:
        identity.pop(semconv.AGENT_SOURCE, None)
    return identity


def _number(attributes: dict[str, Any], attempt_id: str) -> None:
    attributes[semconv.SEQUENCE], attributes[semconv.SEQUENCE_NUMBER] = sequences.take(attempt_id)


def _say_how_many_started(span: SpanRecord) -> None:
    attempt_id = span.get(semconv.ATTEMPT_ID)
    numbering = sequences.started(attempt_id) if isinstance(attempt_id, str) else None
    if numbering is not None and numbering[0] == span.attributes[semconv.SEQUENCE]:
        span.attributes[semconv.SEQUENCE_STARTED] = numbering[1]


def _link_to_users_span() -> tuple[Link, ...]:
    if not otel_context.get_current():  # the program does not use OpenTelemetry itself
        return ()
    context = trace.get_current_span().get_span_context()
    return (Link(context),) if context.is_valid else ()


_UNLIMITED = SpanLimits(
    max_attributes=SpanLimits.UNSET,
    max_events=SpanLimits.UNSET,
    max_links=SpanLimits.UNSET,
    max_span_attributes=SpanLimits.UNSET,
    max_event_attributes=SpanLimits.UNSET,
    max_link_attributes=SpanLimits.UNSET,
    max_attribute_length=SpanLimits.UNSET,
    max_span_attribute_length=SpanLimits.UNSET,
)


def _resource(service_name: str) -> dict[str, str | int]:
    # Resource.create would read OTEL_RESOURCE_ATTRIBUTES and run the user's detectors.
    return {
        "service.name": service_name,
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
        "telemetry.sdk.language": "python",
        "telemetry.distro.name": "lightning-trainer",
        "telemetry.distro.version": client_version(),
    }


def client_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("lightning-trainer")
    except PackageNotFoundError:
        return "unknown"
