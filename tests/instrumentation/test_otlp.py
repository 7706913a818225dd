"""What is written by hand is, byte for byte, what the official encoder writes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightning_instrumentation.spans.otlp import RequestWriter
from lightning_instrumentation.spans.span_record import SpanRecord
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

RESOURCE = {"service.name": "größe", "process.pid": 4711}
SCOPE = "lightning.instrumentation", "1.0"
WRITER = RequestWriter(RESOURCE, *SCOPE)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
scalars = st.one_of(
    texts, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.binary(max_size=20_000)
)
values = st.one_of(scalars, st.lists(texts, max_size=4), st.lists(st.integers(-5, 300), max_size=200))
attributes = st.dictionaries(st.text("abc.é", min_size=1, max_size=150), values, max_size=6)
times = st.integers(1, 2**63 - 1)
contexts = st.builds(SpanContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
statuses = st.one_of(
    st.just(Status()), st.just(Status(StatusCode.OK)), texts.map(lambda text: Status(StatusCode.ERROR, text))
)


def both(name, context, parent, kind, given, links, start_ns, end_ns, events, status) -> tuple[bytes, bytes]:
    """The same span as the official encoder writes it, and as we do."""
    theirs = ReadableSpan(
        name,
        context=context,
        parent=parent,
        resource=Resource(RESOURCE),
        attributes=given,
        events=[SdkEvent(said, attributes, at) for said, at, attributes in events],
        links=links,
        kind=kind,
        status=status,
        start_time=start_ns,
        end_time=end_ns,
        instrumentation_scope=InstrumentationScope(*SCOPE),
    )
    return encode_spans([theirs]).SerializeToString(), WRITER.request(SpanRecord.of(theirs))


spans = st.tuples(
    texts,
    contexts,
    st.none() | contexts,
    st.sampled_from(SpanKind),
    attributes,
    st.lists(st.builds(Link, contexts, attributes), max_size=2),
    times,
    times,
    st.lists(st.tuples(texts, times, attributes), max_size=2),
    statuses,
)


@given(spans)
def test_every_span_has_the_official_bytes(span):
    theirs, ours = both(*span)
    assert ours == theirs


def written(own, *shared):
    ours = SpanRecord("n", 1, 2, None, SpanKind.CLIENT, own, [], (), StatusCode.UNSET, "", 1, 2, shared)
    request = ExportTraceServiceRequest.FromString(WRITER.request(ours))
    return {one.key: one.value for one in request.resource_spans[0].scope_spans[0].spans[0].attributes}


def decoded(value):
    return written({"key": value})["key"]


@pytest.mark.parametrize("around", [0, 127, 16_383, 2_097_151])
def test_lengths_of_every_number_of_bytes_are_written(around):
    for size in range(max(0, around - 40), around + 3):  # lengths around it contain this one
        assert decoded(b"x" * size).bytes_value == b"x" * size
        assert decoded("x" * size).string_value == "x" * size


@given(st.dictionaries(texts, texts), st.dictionaries(texts, texts), st.dictionaries(texts, texts))
def test_shared_attributes_are_those_of_each_span_and_its_own_count_more(one, other, own):
    for _ in range(2):
        found = {key: value.string_value for key, value in written(own, one, other).items()}
        assert found == {**one, **other, **own}


def test_values_that_otlp_has_no_type_for_are_written_as_text():
    assert decoded(2**63).string_value == str(2**63)
    assert decoded({1}).string_value == "{1}"
    assert decoded({"a": 1}).kvlist_value.values[0].value.int_value == 1
    assert decoded(None).WhichOneof("value") is None
    assert math.isnan(decoded(math.nan).double_value)


def test_half_a_surrogate_pair_is_written_as_its_escape():
    assert decoded('["\ud83d"]').string_value == '["\\ud83d"]'
