"""Spans from OTLP JSON lines: one ExportTraceServiceRequest a line, as a collector's file exporter writes them.

Every line becomes the protobuf that it stands for and is read as the receiver reads it, so a span is the same by either
way. A line that cannot be read is left out and named; of a file that is still being written that is the last one.
Source: OpenTelemetry Protocol specification 1.x, JSON Protobuf encoding (ids in hex, 64-bit integers as text or number,
bytes in base64, enumerations as numbers, keys in lowerCamelCase, unknown keys ignored); Protocol File Exporter.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.store.span_codec import attributes_from_proto, span_from_proto
from lightning_trainer.types import Span

_OTHER_SIGNALS = ("resourceLogs", "resourceMetrics", "resourceProfiles")


def read_lines(lines: Iterable[bytes], name: str, problems: list[str]) -> Iterator[Span]:
    """Yield the spans of a file.

    Args:
        lines: with their line ends; empty ones count as lines and hold nothing.
        name: of the file, for messages.
        problems: one sentence is added for everything that is left out.

    Raises:
        MalformedTelemetryError: the first line is no OTLP in JSON, so the file is something else.
    """
    others = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if not line.endswith(b"\n"):
                problems.append(
                    f"{name}: line {number} ends after {len(line)} bytes in the middle of a document (the exporter "
                    "was still writing, or was killed); it is left out"
                )
                return
            if number == 1:
                raise _no_otlp(name, str(error)) from error
            problems.append(f"{name}: line {number} is not JSON and is left out: {error}")
            continue
        if isinstance(document, dict) and any(signal in document for signal in _OTHER_SIGNALS):
            others += 1
            continue
        if not isinstance(document, dict) or not isinstance(document.get("resourceSpans"), list):
            if number == 1:
                raise _no_otlp(name, "it has no resourceSpans")
            problems.append(f"{name}: line {number} has no resourceSpans and is left out")
            continue
        try:
            yield from _spans(document, f"{name}: line {number}", problems)
        except MalformedTelemetryError as error:
            problems.append(f"{name}: line {number} is left out from there on: {error}")
    if others:
        problems.append(f"{name}: {others} lines hold logs, metrics or profiles and no spans; they are left out")


def _no_otlp(name: str, why: str) -> MalformedTelemetryError:
    return MalformedTelemetryError(
        f"{name} is not a file of OTLP JSON lines ({why}): have the collector's file exporter write format json, one "
        "document a line"
    )


def _spans(document: Mapping[str, Any], where: str, problems: list[str]) -> Iterator[Span]:
    for of_resource in _objects(document, "resourceSpans"):
        try:
            resource = attributes_from_proto(_key_values(of_resource.get("resource") or {}, "attributes"))
        except MalformedTelemetryError as error:
            resource = {}
            problems.append(f"{where}: the resource's attributes are left out: {error}")
        for of_scope in _objects(of_resource, "scopeSpans"):
            scope = str((of_scope.get("scope") or {}).get("name") or "")
            for span in _objects(of_scope, "spans"):
                try:
                    yield span_from_proto(_span(span), scope=scope, resource=resource)
                except MalformedTelemetryError as error:
                    problems.append(f"{where}: a span is left out: {error}")


def _span(document: Mapping[str, Any]) -> SpanProto:
    name = str(document.get("name") or "")
    status = document.get("status") or {}
    try:
        return SpanProto(
            trace_id=bytes.fromhex(document.get("traceId") or ""),
            span_id=bytes.fromhex(document.get("spanId") or ""),
            parent_span_id=bytes.fromhex(document.get("parentSpanId") or ""),
            name=name,
            start_time_unix_nano=int(document.get("startTimeUnixNano") or 0),
            end_time_unix_nano=int(document.get("endTimeUnixNano") or 0),
            attributes=_key_values(document, "attributes"),
            events=[
                SpanProto.Event(
                    name=str(event.get("name") or ""),
                    time_unix_nano=int(event.get("timeUnixNano") or 0),
                    attributes=_key_values(event, "attributes"),
                )
                for event in _objects(document, "events")
            ],
            status=Status(code=_status_code(status.get("code")), message=str(status.get("message") or "")),
        )
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise MalformedTelemetryError(f"span {name!r}: {error}") from error


def _status_code(code: Any) -> Any:
    # The specification asks for numbers; writers that use protobuf's own JSON give names.
    return Status.StatusCode.Value(code) if isinstance(code, str) else code or 0


def _key_values(document: Mapping[str, Any], key: str) -> list[KeyValue]:
    return [
        KeyValue(key=str(pair.get("key") or ""), value=_any_value(pair.get("value")))
        for pair in _objects(document, key)
    ]


def _any_value(value: Any) -> AnyValue:
    """Read one value; one that is absent, or of a kind that is not known, is a value that was not set."""
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
                    return AnyValue(
                        array_value=ArrayValue(values=[_any_value(element) for element in _objects(content, "values")])
                    )
                case "kvlistValue":
                    return AnyValue(kvlist_value=KeyValueList(values=_key_values(content, "values")))
        except (ValueError, TypeError, binascii.Error) as error:
            raise MalformedTelemetryError(f"a {kind} cannot be read: {error}") from error
    return AnyValue()


def _objects(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = document.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise MalformedTelemetryError(f"{key} is not a list of objects")
    return found
