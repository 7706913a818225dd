"""Span <-> OTLP: nothing is lost on the way, and what cannot be written is refused by name."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto

from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.otlp.span_codec import (
    attributes_from_proto,
    decode_resource,
    decode_span,
    encode_resource,
    encode_span,
    received_span,
    span_from_proto,
    span_to_proto,
)
from lightning_trainer.types import Span, SpanEvent, SpanStatus

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_int64 = st.integers(-(2**63), 2**63 - 1)
_float = st.floats(allow_nan=False)
_scalar = _text | st.booleans() | _int64 | _float | st.binary(max_size=8)
_array = st.one_of(*(st.lists(kind, max_size=3).map(tuple) for kind in (_text, st.booleans(), _int64, _float)))
_attributes = st.dictionaries(_text, _scalar | _array, max_size=4)
_time = st.integers(0, 2**63 - 1)


def _hex(size: int) -> st.SearchStrategy[str]:
    return st.binary(min_size=size, max_size=size).filter(any).map(bytes.hex)


spans = st.builds(
    Span,
    trace_id=_hex(16),
    span_id=_hex(8),
    parent_span_id=st.none() | _hex(8),
    name=_text,
    start_ns=_time,
    end_ns=_time,
    attributes=_attributes,
    events=st.lists(st.builds(SpanEvent, _text, _time, _attributes), max_size=2).map(tuple),
    status=st.sampled_from(SpanStatus),
    status_message=_text,
    scope=_text,
    resource=_attributes,
)


@pytest.mark.long
@given(spans)
def test_decoding_gives_back_the_span_that_was_encoded(span: Span) -> None:
    resource = decode_resource(encode_resource(span.resource))
    decoded = decode_span(encode_span(span), scope=span.scope, resource=resource)
    assert decoded == span
    # True == 1 == 1.0 in Python: the types must survive as well.
    assert {k: type(v) for k, v in decoded.attributes.items()} == {k: type(v) for k, v in span.attributes.items()}


@given(spans)
def test_a_received_span_is_stored_as_it_came_and_a_changed_one_as_it_is_now(span: Span) -> None:
    sent = span_to_proto(span)
    sent.kind = SpanProto.SPAN_KIND_CLIENT  # which Span has no field for
    received = received_span(sent, scope=span.scope, resource=span.resource)
    assert received == span
    assert SpanProto.FromString(encode_span(received)) == sent
    changed = replace(received, attributes={"redacted": True})
    assert decode_span(encode_span(changed), scope=span.scope, resource=span.resource) == changed


def test_arrays_come_empty_that_are_longer_than_wanted() -> None:
    span = Span("1" * 32, "2" * 16, None, "s", 0, 0, {"ids": (1, 2, 3), "reasons": ("stop", "length"), "n": 1})
    read = decode_span(encode_span(span), scope="", resource={}, longest_array=2)
    assert read.attributes == {"ids": (), "reasons": ("stop", "length"), "n": 1}


def test_nan_survives() -> None:
    span = Span("1" * 32, "2" * 16, None, "s", 0, 0, {"x": math.nan})
    value = decode_span(encode_span(span), scope="", resource={}).attributes["x"]
    assert isinstance(value, float)
    assert math.isnan(value)


def test_equal_resources_have_equal_bytes_whatever_their_order() -> None:
    assert encode_resource({"a": 1, "b": 2}) == encode_resource({"b": 2, "a": 1})


def test_a_value_without_a_python_twin_becomes_its_json_text() -> None:
    nested = KeyValueList(values=[KeyValue(key="k", value=AnyValue(bytes_value=b"\x00"))])
    mixed = ArrayValue(values=[AnyValue(int_value=1), AnyValue(string_value="a"), AnyValue()])
    read = attributes_from_proto(
        [
            KeyValue(key="map", value=AnyValue(kvlist_value=nested)),
            KeyValue(key="mixed", value=AnyValue(array_value=mixed)),
            KeyValue(key="empty", value=AnyValue(array_value=ArrayValue())),
            KeyValue(key="none"),
        ]
    )
    assert read == {"map": '{"k":"AA=="}', "mixed": '[1,"a",null]', "empty": ()}


@pytest.mark.parametrize(
    ("proto", "sentence"),
    [
        (SpanProto(name="x", span_id=b"2" * 8), "trace id missing is not 16 bytes"),
        (SpanProto(name="x", trace_id=bytes(16), span_id=b"2" * 8), "trace id 0000"),
        (SpanProto(name="x", trace_id=b"1" * 16, span_id=b"2" * 7), "is not 8 bytes"),
        (SpanProto(name="x", trace_id=b"1" * 16, span_id=b"2" * 8, parent_span_id=b"3"), "parent span id"),
        (SpanProto(trace_id=b"1" * 16, span_id=b"2" * 8, end_time_unix_nano=2**63), "2262"),
    ],
)
def test_an_invalid_span_is_refused_by_name(proto: SpanProto, sentence: str) -> None:
    with pytest.raises(MalformedTelemetryError, match=sentence):
        span_from_proto(proto, scope="", resource={})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"trace_id": "xyz"}, "trace id 'xyz' is not 32 hex digits"),
        ({"span_id": "0" * 16}, "not all zero"),
        ({"start_ns": -1}, "-1 is not a time"),
        ({"attributes": {"x": 2**63}}, "attribute 'x' cannot be written"),
        ({"attributes": {"x": "\ud800"}}, "attribute 'x' cannot be written"),
        ({"attributes": {"x": {"y": 1}}}, "attribute 'x' is a dict"),
    ],
)
def test_a_span_that_otlp_cannot_carry_is_refused_by_name(fields, sentence: str) -> None:
    good = {"trace_id": "1" * 32, "span_id": "2" * 16, "start_ns": 0, "attributes": {}}
    with pytest.raises(MalformedTelemetryError, match=sentence):
        encode_span(Span(parent_span_id=None, name="s", end_ns=0, **{**good, **fields}))
