"""Span <-> OTLP protobuf, in both directions.

Invariant: ``decode_span(encode_span(span))`` equals ``span``. The reverse does not hold: :class:`Span` has no field for
kind, links, trace state, and dropped counts, and attribute values without a Python counterpart (maps, mixed arrays)
become their JSON text. A received span keeps its bytes, so all of it except its links' attributes is stored; a span
that was changed after it was received is encoded again.
Source: opentelemetry-proto v1, ``trace.proto`` and ``common.proto``.
"""

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.types import AttributeValue, Span, SpanEvent, SpanStatus

_STATUS_OF_CODE = {
    Status.STATUS_CODE_UNSET: SpanStatus.UNSET,
    Status.STATUS_CODE_OK: SpanStatus.OK,
    Status.STATUS_CODE_ERROR: SpanStatus.ERROR,
}
_CODE_OF_STATUS = {status: code for code, status in _STATUS_OF_CODE.items()}
_LATEST_NS = 2**63 - 1
"""SQLite's largest integer; a time beyond it (the year 2262) is a broken clock."""


def span_from_proto(proto: SpanProto, *, scope: str, resource: Mapping[str, AttributeValue]) -> Span:
    """Read one OTLP span.

    Raises:
        MalformedTelemetryError: an id has the wrong length or is all zeros, or a time is out of range.
    """
    if len(proto.trace_id) != 16 or not any(proto.trace_id):
        raise MalformedTelemetryError(
            f"span {proto.name!r}: trace id {proto.trace_id.hex() or 'missing'} is not 16 bytes, not all zero"
        )
    if len(proto.span_id) != 8 or not any(proto.span_id):
        raise MalformedTelemetryError(
            f"span {proto.name!r}: span id {proto.span_id.hex() or 'missing'} is not 8 bytes, not all zero"
        )
    if len(proto.parent_span_id) not in (0, 8):
        raise MalformedTelemetryError(
            f"span {proto.name!r}: parent span id {proto.parent_span_id.hex()} is not 8 bytes; leave it empty on a root"
        )
    if max(proto.start_time_unix_nano, proto.end_time_unix_nano) > _LATEST_NS:
        raise MalformedTelemetryError(
            f"span {proto.span_id.hex()}: its times are not Unix nanoseconds before the year 2262"
        )
    return Span(
        trace_id=proto.trace_id.hex(),
        span_id=proto.span_id.hex(),
        parent_span_id=proto.parent_span_id.hex() if any(proto.parent_span_id) else None,
        name=proto.name,
        start_ns=proto.start_time_unix_nano,
        end_ns=proto.end_time_unix_nano,
        attributes=attributes_from_proto(proto.attributes),
        events=tuple(
            SpanEvent(event.name, event.time_unix_nano, attributes_from_proto(event.attributes))
            for event in proto.events
        ),
        status=_STATUS_OF_CODE.get(proto.status.code, SpanStatus.UNSET),
        status_message=proto.status.message,
        scope=scope,
        resource=resource,
    )


def received_span(proto: SpanProto, *, scope: str, resource: Mapping[str, AttributeValue]) -> Span:
    """Read one OTLP span and keep its bytes: copying them costs a tenth of encoding the span again.

    The bytes omit the links' attributes: a span has no field for these, so nothing would redact them.

    Raises:
        MalformedTelemetryError: as :func:`span_from_proto`.
    """
    span = span_from_proto(proto, scope=scope, resource=resource)
    for link in proto.links:
        link.ClearField("attributes")
    object.__setattr__(span, "received", proto.SerializeToString())
    return span


def span_to_proto(span: Span) -> SpanProto:
    """Write one OTLP span; scope and resource travel outside of it, as in OTLP.

    Raises:
        MalformedTelemetryError: an id is not hex of the right length, or an attribute value has no OTLP type.
    """
    proto = SpanProto(
        trace_id=_identifier(span, "trace id", span.trace_id, 16),
        span_id=_identifier(span, "span id", span.span_id, 8),
        name=span.name,
        start_time_unix_nano=_time(span, span.start_ns),
        end_time_unix_nano=_time(span, span.end_ns),
        attributes=attributes_to_proto(span.attributes),
        events=[
            SpanProto.Event(
                name=event.name,
                time_unix_nano=_time(span, event.time_ns),
                attributes=attributes_to_proto(event.attributes),
            )
            for event in span.events
        ],
    )
    if span.parent_span_id is not None:
        proto.parent_span_id = _identifier(span, "parent span id", span.parent_span_id, 8)
    if span.status is not SpanStatus.UNSET or span.status_message:
        proto.status.code = _CODE_OF_STATUS[span.status]
        proto.status.message = span.status_message
    return proto


def encode_span(span: Span) -> bytes:
    """Return the span as serialized OTLP, without scope and resource: the bytes as received, or newly encoded."""
    return span_to_proto(span).SerializeToString() if span.received is None else span.received


def decode_span(
    body: bytes, *, scope: str, resource: Mapping[str, AttributeValue], longest_array: int | None = None
) -> Span:
    """Read what :func:`encode_span` wrote.

    Args:
        longest_array: attributes that are longer arrays are returned empty: reading each value takes a microsecond.
    """
    proto = SpanProto.FromString(body)
    if longest_array is not None:
        for attribute in proto.attributes:
            values = attribute.value.array_value.values
            if len(values) > longest_array:
                del values[:]
    return span_from_proto(proto, scope=scope, resource=resource)


def encode_resource(resource: Mapping[str, AttributeValue]) -> bytes:
    """Return a resource as serialized OTLP; equal mappings give equal bytes."""
    ordered = {name: resource[name] for name in sorted(resource)}
    return Resource(attributes=attributes_to_proto(ordered)).SerializeToString(deterministic=True)


def decode_resource(body: bytes) -> dict[str, AttributeValue]:
    """Read what :func:`encode_resource` wrote."""
    return attributes_from_proto(Resource.FromString(body).attributes)


def attributes_from_proto(attributes: Iterable[KeyValue]) -> dict[str, AttributeValue]:
    """Read OTLP attributes; an attribute without a value is left out (``None`` is "not measured")."""
    read: dict[str, AttributeValue] = {}
    for attribute in attributes:
        value = attribute.value
        kind = value.WhichOneof("value")
        if kind is None:
            continue
        if kind == "array_value":
            read[attribute.key] = _array(value.array_value)
        elif kind == "kvlist_value":
            read[attribute.key] = orjson.dumps(_plain(value)).decode()
        else:
            read[attribute.key] = getattr(value, kind)
    return read


def attributes_to_proto(attributes: Mapping[str, AttributeValue]) -> list[KeyValue]:
    """Write OTLP attributes.

    Raises:
        MalformedTelemetryError: a value has a type that OTLP has no field for, or is an integer beyond 64 bits.
    """
    return [KeyValue(key=key, value=_any_value(key, value)) for key, value in attributes.items()]


def _any_value(key: str, value: AttributeValue) -> AnyValue:
    try:
        match value:
            case str():
                return AnyValue(string_value=value)
            case bool():  # before int: True is an int
                return AnyValue(bool_value=value)
            case int():
                return AnyValue(int_value=value)
            case float():
                return AnyValue(double_value=value)
            case bytes():
                return AnyValue(bytes_value=value)
            case tuple() | list():
                return AnyValue(array_value=ArrayValue(values=[_any_value(key, element) for element in value]))
    except (ValueError, TypeError) as error:
        raise MalformedTelemetryError(f"attribute {key!r} cannot be written: {error}") from error
    raise MalformedTelemetryError(f"attribute {key!r} is a {type(value).__name__}, which a span cannot carry")


def _array(array: ArrayValue) -> AttributeValue:
    kinds = {element.WhichOneof("value") for element in array.values}
    if not kinds:
        return ()
    kind = kinds.pop()
    if kinds or kind not in ("string_value", "bool_value", "int_value", "double_value"):
        return orjson.dumps([_plain(element) for element in array.values]).decode()
    return tuple(getattr(element, kind) for element in array.values)


def _plain(value: AnyValue) -> Any:
    # Nesting is bounded: protobuf refuses messages more than 100 deep when it parses them.
    kind = value.WhichOneof("value")
    match kind:
        case None:
            return None
        case "array_value":
            return [_plain(element) for element in value.array_value.values]
        case "kvlist_value":
            return {entry.key: _plain(entry.value) for entry in value.kvlist_value.values}
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case _:
            return getattr(value, kind)


def _identifier(span: Span, what: str, digits: str, size: int) -> bytes:
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if len(raw) != size or not any(raw):
        raise MalformedTelemetryError(
            f"span {span.name!r}: {what} {digits!r} is not {2 * size} hex digits, not all zero"
        )
    return raw


def _time(span: Span, time_ns: int) -> int:
    if not 0 <= time_ns <= _LATEST_NS:
        raise MalformedTelemetryError(f"span {span.name!r}: {time_ns} is not a time in Unix nanoseconds before 2262")
    return time_ns
