"""The OTLP receiver: what OpenTelemetry's own encoder sends arrives whole; everything else gets one sentence."""

import gzip
from collections.abc import Sequence

import httpx
import pytest
from lightning_instrumentation.packing import pack_token_ids
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode

from lightning_trainer.errors import StoreError
from lightning_trainer.ingest.otlp import decode_request, otlp_router
from lightning_trainer.types import Span, SpanEvent, SpanStatus

_HEADERS = {"content-type": "application/x-protobuf"}


class Sink:
    """Keeps what it is given; fails on demand."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.error: Exception | None = None

    async def append(self, spans: Sequence[Span]) -> int:
        if self.error is not None:
            raise self.error
        self.spans.extend(spans)
        return len(spans)


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def client(sink: Sink, client_of) -> httpx.AsyncClient:
    return client_of(otlp_router(sink, max_body_bytes=2**20))


def _real_body() -> bytes:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "agent"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("lightning.instrumentation")
    with tracer.start_as_current_span("outer", start_time=10) as outer:
        outer.set_status(Status(StatusCode.ERROR, "it raised"))
        with tracer.start_as_current_span("inner", start_time=20, end_on_exit=False) as inner:
            inner.set_attributes({"ids": pack_token_ids([1, 2, 70000]), "n": 3, "ok": True, "names": ["a", "b"]})
            inner.add_event("scored", {"value": 0.5}, timestamp=25)
            inner.end(30)
    return encode_spans(exporter.get_finished_spans()).SerializeToString()


@pytest.mark.parametrize("compressed", [False, True])
async def test_what_opentelemetry_encodes_arrives_whole(client, sink: Sink, compressed: bool) -> None:
    body = gzip.compress(_real_body()) if compressed else _real_body()
    headers = {**_HEADERS, "content-encoding": "gzip"} if compressed else _HEADERS
    answer = await client.post("/v1/traces", content=body, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert not ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans
    inner, outer = sink.spans
    assert inner == Span(
        trace_id=outer.trace_id,
        span_id=inner.span_id,
        parent_span_id=outer.span_id,
        name="inner",
        start_ns=20,
        end_ns=30,
        attributes={"ids": b"\x01\0\0\0\x02\0\0\0\x70\x11\x01\0", "n": 3, "ok": True, "names": ("a", "b")},
        events=(SpanEvent("scored", 25, {"value": 0.5}),),
        scope="lightning.instrumentation",
        resource={"service.name": "agent"},
    )
    assert (outer.parent_span_id, outer.status, outer.status_message) == (None, SpanStatus.ERROR, "it raised")


def test_requests_laid_end_to_end_share_equal_resources_and_keep_others_apart() -> None:
    def request(number: int, service: str) -> bytes:
        span = SpanProto(trace_id=b"1" * 16, span_id=bytes([number]) * 8)
        of_resource = ResourceSpans(scope_spans=[ScopeSpans(spans=[span])])
        of_resource.resource.attributes.add(key="service.name").value.string_value = service
        return ExportTraceServiceRequest(resource_spans=[of_resource]).SerializeToString()

    first, second, other = decode_request(request(1, "a") + request(2, "a") + request(3, "b")).spans
    assert first.resource is second.resource
    assert (first.resource, other.resource) == ({"service.name": "a"}, {"service.name": "b"})


async def test_it_is_stored_before_it_is_acknowledged(store, client_of) -> None:
    client, body = client_of(otlp_router(store)), _real_body()
    for _ in range(2):  # a second delivery is acknowledged and changes nothing
        assert (await client.post("/v1/traces", content=body, headers=_HEADERS)).status_code == 200
        assert (await store.counts())["spans"] == 2


async def test_a_span_with_invalid_ids_is_counted_and_the_rest_goes_on(client, sink: Sink) -> None:
    good = SpanProto(trace_id=b"1" * 16, span_id=b"2" * 8, name="good")
    bad = SpanProto(trace_id=b"1" * 3, span_id=b"2" * 8, name="bad")
    request = ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[bad, good, SpanProto()])])]
    )
    answer = await client.post("/v1/traces", content=request.SerializeToString(), headers=_HEADERS)
    assert answer.status_code == 200
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert partial.rejected_spans == 2
    assert "span 'bad': trace id 313131" in partial.error_message
    assert [span.name for span in sink.spans] == ["good"]


@pytest.mark.parametrize(
    ("content", "headers", "status", "sentence"),
    [
        (b"\xff\xff\xff", {}, 400, "not an ExportTraceServiceRequest"),
        (b"{}", {"content-type": "application/json"}, 415, "'application/json': send OTLP as application/x-protobuf"),
        (b"", {"content-type": ""}, 415, "missing"),
        (b"x", {"content-encoding": "br"}, 415, "'br': send gzip or none"),
        (b"not gzip", {"content-encoding": "gzip"}, 400, "is said to be gzip and is not"),
        (gzip.compress(bytes(2**24)), {"content-encoding": "gzip"}, 413, "inflates to more than 1048576 bytes"),
        (bytes(2**20 + 1), {}, 413, "more than 1048576 bytes"),
    ],
)
async def test_what_cannot_be_read_gets_a_status_and_one_sentence(client, sink, content, headers, status, sentence):
    answer = await client.post("/v1/traces", content=content, headers={**_HEADERS, **headers})
    assert answer.status_code == status
    assert sentence in answer.text
    assert "\n" not in answer.text
    assert sink.spans == []


async def test_a_store_that_cannot_commit_asks_for_the_spans_again(client, sink: Sink) -> None:
    sink.error = StoreError("the disk is full")
    answer = await client.post("/v1/traces", content=_real_body(), headers=_HEADERS)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.text == "the disk is full"


async def test_too_many_bodies_at_once_are_asked_to_come_again(sink: Sink, client_of) -> None:
    client = client_of(otlp_router(sink, max_in_flight=0))
    answer = await client.post("/v1/traces", content=_real_body(), headers=_HEADERS)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_an_empty_request_is_an_empty_export() -> None:
    assert decode_request(b"").spans == ()
