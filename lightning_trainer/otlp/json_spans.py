"""Spans of an OTLP request in JSON, each converted to the protobuf that it represents.

A span is therefore the same in either encoding. If a span is unreadable, only that span is rejected. Source:
OpenTelemetry Protocol specification 1.x, JSON Protobuf encoding (ids in hex, 64-bit integers as text or number, bytes
in base64, enumerations as numbers, keys in lowerCamelCase, unknown keys ignored).
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.otlp.span_codec import attributes_from_proto
from lightning_trainer.types import AttributeValue, Span

_LONGEST_SHOWN = 64
_DEEPEST = 30
"""Maximum nesting of arrays and maps in one value: spans are stored as protobuf, which cannot be read back beyond 100
nested messages, and each level of a map takes three of them."""
_UNREADABLE = (ValueError, TypeError, OverflowError, AttributeError)


class SpanReader(Protocol):
    """A function that makes a span from its protobuf; raises MalformedTelemetryError if the span cannot be stored."""

    def __call__(self, proto: SpanProto, *, scope: str, resource: Mapping[str, AttributeValue]) -> Span: ...


def parse_json(text: str | bytes) -> Any:
    """Return the document; half a character, left at the end of a text that was cut inside an emoji, becomes ``?``.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # JavaScript and Python write the half as an escape (``\ud83d``), which orjson alone refuses.
        with suppress(ValueError, RecursionError):
            return orjson.loads(json.dumps(json.loads(text), ensure_ascii=False).encode(errors="replace"))
        raise


def spans_of(
    document: Mapping[str, Any], rejected: list[str], warnings: list[str], *, read: SpanReader
) -> Iterator[Span]:
    """Yield the spans of an ExportTraceServiceRequest.

    Args:
        rejected: one sentence is added for each span that cannot be read.
        warnings: one sentence is added for anything left out around spans that are kept.
        read: ``span_codec.span_from_proto``, or ``received_span`` to keep the bytes for the store.

    Raises:
        MalformedTelemetryError: the document, from the current position on, is not such a request.
    """
    for of_resource in objects(document, "resourceSpans"):
        try:
            resource = attributes_from_proto(key_values(_object(of_resource, "resource"), "attributes"))
        except MalformedTelemetryError as error:
            resource = {}
            warnings.append(f"the resource's attributes are left out: {error}")
        for of_scope in objects(of_resource, "scopeSpans"):
            scope = str(_object(of_scope, "scope").get("name") or "")
            for span in objects(of_scope, "spans"):
                try:
                    yield read(_span(span), scope=scope, resource=resource)
                except MalformedTelemetryError as error:
                    rejected.append(str(error))


def _span(document: Mapping[str, Any]) -> SpanProto:
    name = str(document.get("name") or "")
    try:
        status = _object(document, "status")
        return SpanProto(
            trace_id=hex_id(document, "traceId"),
            span_id=hex_id(document, "spanId"),
            parent_span_id=hex_id(document, "parentSpanId"),
            trace_state=str(document.get("traceState") or ""),
            flags=int(document.get("flags") or 0),
            name=name,
            kind=_enumerator(SpanProto.SpanKind, document.get("kind")),
            start_time_unix_nano=int(document.get("startTimeUnixNano") or 0),
            end_time_unix_nano=int(document.get("endTimeUnixNano") or 0),
            attributes=key_values(document, "attributes"),
            events=[
                SpanProto.Event(
                    name=str(event.get("name") or ""),
                    time_unix_nano=int(event.get("timeUnixNano") or 0),
                    attributes=key_values(event, "attributes"),
                )
                for event in objects(document, "events")
            ],
            links=[
                SpanProto.Link(
                    trace_id=hex_id(link, "traceId"),
                    span_id=hex_id(link, "spanId"),
                    attributes=key_values(link, "attributes"),
                )
                for link in objects(document, "links")
            ],
            status=Status(
                code=_enumerator(Status.StatusCode, status.get("code")), message=str(status.get("message") or "")
            ),
        )
    except MalformedTelemetryError as error:
        raise MalformedTelemetryError(f"span {name!r}: {error}") from error
    except _UNREADABLE as error:
        raise MalformedTelemetryError(f"span {name!r}: {error}") from error


def hex_id(document: Mapping[str, Any], key: str) -> bytes:
    """Return the bytes of an id; raises MalformedTelemetryError: its text is not hex digits."""
    digits = document.get(key) or ""
    try:
        return bytes.fromhex(digits)
    except _UNREADABLE:
        raise MalformedTelemetryError(f"{key} is {repr(digits)[:_LONGEST_SHOWN]}, which is not hex digits") from None


def _enumerator(enumeration: Any, value: Any) -> Any:
    # The specification requires numbers; writers that use protobuf's own JSON encoding send names.
    return enumeration.Value(value) if isinstance(value, str) else value or 0


def key_values(document: Mapping[str, Any], key: str, depth: int = 0) -> list[KeyValue]:
    """Return attributes; raises MalformedTelemetryError: they are not a list of keys with values."""
    return [
        KeyValue(key=str(pair.get("key") or ""), value=_any_value(pair.get("value"), depth))
        for pair in objects(document, key)
    ]


def _any_value(value: Any, depth: int) -> AnyValue:
    """Read one value; a missing value, or one of an unknown kind, counts as not set."""
    if depth > _DEEPEST:
        raise MalformedTelemetryError(f"an attribute's value is nested more than {_DEEPEST} levels deep; write it flat")
    if value is not None and not isinstance(value, Mapping):
        # The message leaves out the value, which may be long or a secret: the message is logged, before any redaction.
        raise MalformedTelemetryError(
            f"an attribute's value has the type {type(value).__name__} and is not an object such as "
            "{'stringValue': ...}"
        )
    for kind, content in (value or {}).items():
        if content is None:
            continue
        try:
            match kind:
                case "stringValue":
                    return AnyValue(string_value=content)
                case "boolValue":
                    return AnyValue(bool_value=content)
                case "intValue":
                    return AnyValue(int_value=int(content))
                case "doubleValue":
                    return AnyValue(double_value=float(content))
                case "bytesValue":
                    return AnyValue(bytes_value=base64.b64decode(content, validate=True))
                case "arrayValue":
                    elements = [_any_value(element, depth + 1) for element in objects(content, "values")]
                    return AnyValue(array_value=ArrayValue(values=elements))
                case "kvlistValue":
                    return AnyValue(kvlist_value=KeyValueList(values=key_values(content, "values", depth + 1)))
        except MalformedTelemetryError:
            raise
        except (*_UNREADABLE, binascii.Error) as error:
            raise MalformedTelemetryError(f"a {kind} cannot be read: {error}") from error
    return AnyValue()


def _object(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key) or {}
    if not isinstance(found, Mapping):
        raise MalformedTelemetryError(f"{key} is not an object")
    return found


def objects(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return a list of objects, empty if it is missing; raises MalformedTelemetryError: it is something else."""
    found = document.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise MalformedTelemetryError(f"{key} is not a list of objects")
    return found
