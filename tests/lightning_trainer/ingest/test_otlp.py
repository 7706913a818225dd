"""The OTLP receiver: what OpenTelemetry's own encoder sends arrives whole; everything else gets one sentence."""

import gzip
import json
from collections import Counter
from collections.abc import Sequence

import httpx
import pytest
from google.rpc.status_pb2 import Status as RpcStatus
from lightning_instrumentation.spans.packing import pack_token_ids
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
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
from lightning_trainer.ingest.http.otlp import decode_request, otlp_router
from lightning_trainer.types import Span, SpanEvent, SpanStatus

_HEADERS = {"content-type": "application/x-protobuf"}
_JSON = {"content-type": "application/json"}


def _sentence(answer: httpx.Response) -> str:
    """What a refusal says, in the encoding of its request: google.rpc.Status, whose message is field 2."""
    if answer.headers["content-type"] == "application/json":
        return answer.json()["message"]
    assert answer.headers["content-type"] == "application/x-protobuf"
    return RpcStatus.FromString(answer.content).message


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
        (
            b"{}",
            {"content-type": "text/plain"},
            415,
            "'text/plain': send OTLP as application/x-protobuf or application/json",
        ),
        (b"{", _JSON, 400, "the body is not JSON"),
        (b"[" * 5000 + b"]" * 5000, _JSON, 400, "the body is not JSON"),
        (b"[]", _JSON, 400, "the body is a JSON list, not an ExportTraceServiceRequest"),
        (b'{"resourceSpans": {"a": 1}}', _JSON, 400, "resourceSpans is not a list of objects"),
        (b'{"resourceSpans": [{"scopeSpans": [{"scope": [1]}]}]}', _JSON, 400, "scope is not an object"),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": ["x"]}]}]}', _JSON, 400, "spans is not a list of objects"),
        (b"not gzip", {**_JSON, "content-encoding": "gzip"}, 400, "is declared as gzip but is not"),
        (b"", {"content-type": ""}, 415, "missing"),
        (b"x", {"content-encoding": "br"}, 415, "'br': send gzip or none"),
        (b"not gzip", {"content-encoding": "gzip"}, 400, "is declared as gzip but is not"),
        (gzip.compress(bytes(2**24)), {"content-encoding": "gzip"}, 413, "inflates to more than 1048576 bytes"),
        (bytes(2**20 + 1), {}, 413, "more than 1048576 bytes"),
    ],
)
async def test_what_cannot_be_read_gets_a_status_and_one_sentence(client, sink, content, headers, status, sentence):
    answer = await client.post("/v1/traces", content=content, headers={**_HEADERS, **headers})
    assert answer.status_code == status
    said = _sentence(answer)
    assert sentence in said
    assert "\n" not in said
    assert sink.spans == []


async def test_a_store_that_cannot_commit_asks_for_the_spans_again(client, sink: Sink) -> None:
    sink.error = StoreError("the disk is full")
    answer = await client.post("/v1/traces", content=_real_body(), headers=_HEADERS)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert _sentence(answer) == "the disk is full"


async def test_too_many_bodies_at_once_are_asked_to_come_again(sink: Sink, client_of) -> None:
    client = client_of(otlp_router(sink, max_in_flight=0))
    answer = await client.post("/v1/traces", content=_real_body(), headers=_HEADERS)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_an_empty_request_is_an_empty_export() -> None:
    assert decode_request(b"").spans == ()


_TRACE, _SPAN, _PARENT = "5b8efff798038103d269b633813fc60c", "EEE19B7EC3C1B174", "eee19b7ec3c1b173"


def _json_request(**of_span: object) -> dict:
    """As the specification's own example has it, with members that no version of ours knows."""
    span = {
        "traceId": _TRACE,
        "spanId": _SPAN,
        "parentSpanId": _PARENT,
        "name": "ai.generateText.doGenerate",
        "kind": 2,
        "startTimeUnixNano": "1544712660000000000",
        "endTimeUnixNano": 1544712661000000000,
        "attributes": [
            {"key": "ids", "value": {"bytesValue": "AQAAAA=="}},
            {"key": "n", "value": {"intValue": "3"}},
            {"key": "ok", "value": {"boolValue": True}},
            {"key": "reasons", "value": {"arrayValue": {"values": [{"stringValue": "stop"}]}}},
            {"key": "of a newer version", "value": {"uuidValue": "x"}},
        ],
        "events": [
            {"timeUnixNano": "5", "name": "scored", "attributes": [{"key": "v", "value": {"doubleValue": 0.5}}]}
        ],
        "links": [{"traceId": _TRACE, "spanId": _PARENT}],
        "status": {"code": "STATUS_CODE_ERROR", "message": "it raised"},
        "aNewMember": {"x": 1},
        **of_span,
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "node"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "ai"}, "spans": [span]}]}]}


@pytest.mark.parametrize("compressed", [False, True])
async def test_json_is_read_as_the_protobuf_that_it_stands_for(client, sink: Sink, compressed: bool) -> None:
    # Before: JSON was refused, which Node's exporter sends unless it is told otherwise
    body = json.dumps(_json_request()).encode()
    headers = {**_JSON, "content-type": "application/json; charset=utf-8"}
    if compressed:
        body, headers = gzip.compress(body), {**headers, "content-encoding": "gzip"}
    answer = await client.post("/v1/traces", content=body, headers=headers)
    assert (answer.status_code, answer.headers["content-type"], answer.json()) == (200, "application/json", {})
    (span,) = sink.spans
    assert span == Span(
        trace_id=_TRACE,
        span_id=_SPAN.lower(),
        parent_span_id=_PARENT,
        name="ai.generateText.doGenerate",
        start_ns=1544712660000000000,
        end_ns=1544712661000000000,
        attributes={"ids": b"\x01\0\0\0", "n": 3, "ok": True, "reasons": ("stop",)},
        events=(SpanEvent("scored", 5, {"v": 0.5}),),
        status=SpanStatus.ERROR,
        status_message="it raised",
        scope="ai",
        resource={"service.name": "node"},
    )
    assert span.received is not None
    kept = SpanProto.FromString(span.received)  # what Span has no field for is stored too
    assert (kept.kind, kept.links[0].span_id.hex()) == (SpanProto.SPAN_KIND_SERVER, _PARENT)


async def test_a_text_that_was_cut_inside_an_emoji_takes_no_span_with_it(client, sink: Sink) -> None:
    cut = {"key": "ai.response.text", "value": {"stringValue": "gut \ud83d"}}
    whole = {"key": "ai.response.text", "value": {"stringValue": "gut \U0001f600"}}
    document = _json_request(attributes=[cut])
    document["resourceSpans"] += _json_request(attributes=[whole])["resourceSpans"]
    answer = await client.post("/v1/traces", content=json.dumps(document), headers=_JSON)
    assert (answer.status_code, answer.json()) == (200, {})
    assert [span.attributes["ai.response.text"] for span in sink.spans] == ["gut ?", "gut \U0001f600"]


def _nested(levels: int) -> dict:
    value: dict = {"stringValue": "x"}
    for _ in range(levels):
        value = {"kvlistValue": {"values": [{"key": "k", "value": value}]}}
    return value


@pytest.mark.parametrize(
    ("of_span", "sentence"),
    [
        ({"traceId": "5b8e"}, "trace id 5b8e is not 16 bytes"),
        ({"spanId": "zz"}, "spanId is 'zz', which is not hex digits"),
        ({"traceId": 5}, "traceId is 5, which is not hex digits"),
        ({"traceId": "z" * 999}, f"traceId is '{'z' * 63}, which is not hex digits"),
        ({"attributes": [{"key": "a", "value": "a secret"}]}, "an attribute's value has the type str and is not"),
        ({"startTimeUnixNano": "soon"}, "soon"),
        ({"attributes": [{"key": "n", "value": {"intValue": "3.x"}}]}, "a intValue cannot be read"),
        ({"attributes": [{"key": "n", "value": 3}]}, "an attribute's value has the type int and is not an object"),
        ({"attributes": [{"key": "n", "value": _nested(31)}]}, "nested more than 30 levels deep"),
        ({"status": "OK"}, "status is not an object"),
        ({"kind": "SPAN_KIND_OF_MINE"}, "SPAN_KIND_OF_MINE"),
    ],
)
async def test_a_span_in_json_that_cannot_be_read_is_counted_alone(client, sink: Sink, of_span, sentence) -> None:
    document = _json_request(**of_span)
    document["resourceSpans"] += _json_request(name="good")["resourceSpans"]
    answer = await client.post("/v1/traces", json=document)
    assert answer.status_code == 200
    partial = answer.json()["partialSuccess"]
    assert partial["rejectedSpans"] == "1"
    assert sentence in partial["errorMessage"]
    assert [span.name for span in sink.spans] == ["good"]


async def test_the_deepest_value_that_is_taken_can_be_read_back_from_the_store(store, client_of) -> None:
    attempt = {"key": "lightning.attempt.id", "value": {"stringValue": "a"}}
    rollout = {"key": "lightning.rollout.id", "value": {"stringValue": "a"}}
    document = _json_request(attributes=[attempt, rollout, {"key": "deep", "value": _nested(30)}])
    answer = await client_of(otlp_router(store)).post("/v1/traces", json=document)
    assert (answer.status_code, answer.json()) == (200, {})
    (span,) = await store.spans_of_attempts(["a"])
    assert json.loads(span.attributes["deep"])["k"]["k"]


async def test_a_resource_that_cannot_be_read_is_named_and_its_spans_are_kept(client, sink: Sink) -> None:
    document = _json_request()
    document["resourceSpans"][0]["resource"] = 3
    answer = await client.post("/v1/traces", json=document)
    assert answer.json()["partialSuccess"] == {
        "rejectedSpans": "0",
        "errorMessage": "the resource's attributes are left out: resource is not an object",
    }
    assert len(sink.spans) == 1


@pytest.mark.parametrize("headers", [_HEADERS, _JSON], ids=["protobuf", "json"])
async def test_logs_and_metrics_are_answered_counted_and_not_kept(sink: Sink, client_of, headers, caplog) -> None:
    # Before: 404, which each exporter logged as an error at the user's side, again and again
    not_kept: Counter[str] = Counter()
    client = client_of(otlp_router(sink, not_kept=not_kept))
    for _ in range(3):
        for signal, answered in (("logs", ExportLogsServiceResponse), ("metrics", ExportMetricsServiceResponse)):
            answer = await client.post(f"/v1/{signal}", content=b"{}", headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (200, headers["content-type"])
            if headers is _HEADERS:
                assert answered.FromString(answer.content) == answered()
            else:
                assert answer.json() == {}
    assert not_kept == {"logs": 3, "metrics": 3}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("logs are sent to /v1/logs and are not kept: words that an instrumentation sends")
