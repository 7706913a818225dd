"""Our own tracer: separate from the user's provider, limits, sampler and random numbers.

Nothing of the user's OpenTelemetry set-up changes what is recorded here (no ``OTEL_*`` limit or sampler applies), and
nothing here changes theirs: the provider is never the global one and ids do not come from the shared ``random``, so a
program that seeds it draws the same numbers with and without us, and two seeded processes never share a trace id.
"""

import os
import random
import socket
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version

from opentelemetry import baggage, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Tracer
from opentelemetry.util.types import AttributeValue

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import guarded
from lightning_instrumentation.redaction.spans import Editor
from lightning_instrumentation.scope import current, speaker
from lightning_instrumentation.sequence import sequences


class OwnIdGenerator(IdGenerator):
    """Random numbers of our own, seeded by the operating system: blind to ``random.seed``. A fork makes a new one."""

    def __init__(self) -> None:
        self._random = random.Random()

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64) or self.generate_span_id()

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128) or self.generate_trace_id()

    def is_trace_id_random(self) -> bool:
        return True


def identity_attributes() -> dict[str, str]:
    """Return attempt and agent as they are here; from incoming baggage where this process knows of no attempt."""
    scope = current()
    attributes = scope.identity.attributes() if scope.identity else _from_baggage()
    agent = speaker()
    if agent is not None:
        attributes[semconv.AGENT_NAME] = agent.name
        attributes[semconv.AGENT_SOURCE] = agent.source
    elif semconv.AGENT_NAME in attributes:
        attributes[semconv.AGENT_SOURCE] = "baggage"
    return attributes


def _from_baggage() -> dict[str, str]:
    carried = baggage.get_all()
    return {key: str(carried[key]) for key in semconv.BAGGAGE_KEYS if key in carried} if carried else {}


class IdentityProcessor(SpanProcessor):
    """Puts identity on every span at its start, whoever starts it; what the span says of itself stays."""

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        guarded("identity", self._stamp, span)

    def _stamp(self, span: SdkSpan) -> None:
        known = span.attributes or {}
        attributes = identity_attributes()
        if semconv.AGENT_NAME in known:
            attributes.pop(semconv.AGENT_SOURCE, None)
        span.set_attributes({key: value for key, value in attributes.items() if key not in known})


class OutboxProcessor(SpanProcessor):
    """Hands each ended span over as a serialised request of its own: bodies of several are plain concatenation."""

    def __init__(self, put: Callable[[bytes], None], started: Callable[[], None], editor: Editor) -> None:
        self._put = put
        self._started = started
        self._editor = editor
        self._pid = os.getpid()

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        self._started()
        guarded("sequence", _number, span)

    def on_end(self, span: ReadableSpan) -> None:
        # A forked child has copies of the spans that were open in its parent; each is its parent's to end.
        if os.getpid() == self._pid:
            guarded("export", self._export, span)

    def _export(self, span: ReadableSpan) -> None:
        request = encode_spans([span])
        encoded = request.resource_spans[0].scope_spans[0].spans[0]
        self._editor.edit(encoded)
        started = _started_by_now(span)
        if started is not None:
            encoded.attributes.add(key=semconv.SEQUENCE_STARTED).value.int_value = started
        self._put(request.SerializeToString())


def _number(span: SdkSpan) -> None:
    attempt_id = (span.attributes or {}).get(semconv.ATTEMPT_ID)
    if isinstance(attempt_id, str):
        numbering, number = sequences.take(attempt_id)
        span.set_attributes({semconv.SEQUENCE: numbering, semconv.SEQUENCE_NUMBER: number})


def _started_by_now(span: ReadableSpan) -> int | None:
    attributes = span.attributes or {}
    attempt_id = attributes.get(semconv.ATTEMPT_ID)
    numbering = sequences.started(attempt_id) if isinstance(attempt_id, str) else None
    return numbering[1] if numbering is not None and numbering[0] == attributes.get(semconv.SEQUENCE) else None


def build_provider(
    service_name: str, put: Callable[[bytes], None], started: Callable[[], None], editor: Editor
) -> TracerProvider:
    unlimited = SpanLimits.UNSET
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        # Resource.create would read OTEL_RESOURCE_ATTRIBUTES and run the user's detectors.
        resource=Resource(
            {
                "service.name": service_name,
                "host.name": socket.gethostname(),
                "process.pid": os.getpid(),
                "telemetry.sdk.language": "python",
                "telemetry.distro.name": "lightning-trainer",
                "telemetry.distro.version": client_version(),
            }
        ),
        shutdown_on_exit=False,
        id_generator=OwnIdGenerator(),
        span_limits=SpanLimits(
            max_attributes=unlimited,
            max_events=unlimited,
            max_links=unlimited,
            max_span_attributes=unlimited,
            max_event_attributes=unlimited,
            max_link_attributes=unlimited,
            max_attribute_length=unlimited,
            max_span_attribute_length=unlimited,
        ),
        meter_provider=NoOpMeterProvider(),
    )
    provider.add_span_processor(IdentityProcessor())
    provider.add_span_processor(OutboxProcessor(put, started, editor))
    return provider


def client_version() -> str:
    try:
        return version("lightning-trainer")
    except PackageNotFoundError:
        return "unknown"


def start_span(
    tracer: Tracer,
    name: str,
    attributes: Mapping[str, AttributeValue],
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    new_trace: bool = False,
    start_ns: int | None = None,
) -> Span:
    """Start a span below the current one of ours, or a trace of its own.

    A span of the user's own that is active is not its parent (theirs may never reach our store), but the root of our
    trace links to it.
    """
    parent = None if new_trace else current().span
    context = trace.set_span_in_context(parent, Context()) if parent is not None else Context()
    links = () if parent is not None else _link_to_users_span()
    return tracer.start_span(name, context, kind, attributes, links, start_ns)


def _link_to_users_span() -> tuple[Link, ...]:
    context: SpanContext = trace.get_current_span().get_span_context()
    return (Link(context),) if context.is_valid else ()
