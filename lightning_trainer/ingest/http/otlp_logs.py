"""Evaluations among OTLP log records: OpenTelemetry's events are log records with a name.

Each becomes the same span as any other evaluation, as a child of the span that the record names. Its id is derived from
the record, so redelivery changes nothing. All other records are ignored. Source: OpenTelemetry semantic conventions for
GenAI events, ``gen_ai.evaluation.result`` ("SHOULD be parented to GenAI operation span being evaluated"); logs data
model, ``EventName``.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from lightning_instrumentation import semconv
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.ingest.http.otlp_answers import JSON
from lightning_trainer.otlp.json_spans import hex_id, key_values, objects, parse_json
from lightning_trainer.otlp.span_codec import attributes_from_proto
from lightning_trainer.types import AttributeValue, Span, SpanEvent

SCOPE = "lightning.otlp.events"
_EVENT_NAME = "event.name"
"""The attribute that held an event's name before the field existed."""
_SUBJECTS = (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID, semconv.RESPONSE_ID, semconv.FEEDBACK_TRACE)
_WHO = (semconv.FEEDBACK_SOURCE, semconv.FEEDBACK_KIND)


@dataclass(frozen=True, slots=True)
class Events:
    """The evaluations of a request."""

    evaluations: tuple[Span, ...]
    others: int
    """Number of records that are not evaluations."""


def read_logs(body: bytes, media_type: str) -> Events:
    """Read an ExportLogsServiceRequest.

    Raises:
        MalformedTelemetryError: it is not one.
    """
    records = list(_of_json(body) if media_type == JSON else _of_protobuf(body))
    spans = [span for record in records if (span := _span(record)) is not None]
    return Events(tuple(spans), len(records) - len(spans))


def _of_protobuf(body: bytes) -> Iterator[LogRecord]:
    try:
        request = ExportLogsServiceRequest.FromString(body)
    except DecodeError as error:
        raise MalformedTelemetryError(f"the body is not an ExportLogsServiceRequest in protobuf: {error}") from error
    for of_resource in request.resource_logs:
        for of_scope in of_resource.scope_logs:
            yield from of_scope.log_records


def _of_json(body: bytes) -> Iterator[LogRecord]:
    try:
        document = parse_json(body)
        if not isinstance(document, dict):
            raise MalformedTelemetryError(f"the body is a JSON {type(document).__name__}, not a request of logs")
        for of_resource in objects(document, "resourceLogs"):
            for of_scope in objects(of_resource, "scopeLogs"):
                for record in objects(of_scope, "logRecords"):
                    yield LogRecord(
                        event_name=str(record.get("eventName") or ""),
                        time_unix_nano=int(record.get("timeUnixNano") or 0),
                        observed_time_unix_nano=int(record.get("observedTimeUnixNano") or 0),
                        trace_id=hex_id(record, "traceId"),
                        span_id=hex_id(record, "spanId"),
                        attributes=key_values(record, "attributes"),
                    )
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, MalformedTelemetryError):
            raise
        raise MalformedTelemetryError(f"the body is not a request of logs in JSON: {error}") from error


def _span(record: LogRecord) -> Span | None:
    """Return an evaluation as a span; None for any other record, and for an evaluation without a subject."""
    told: Mapping[str, AttributeValue] = attributes_from_proto(record.attributes)
    if semconv.EVALUATION_EVENT not in (record.event_name, told.get(_EVENT_NAME)):
        return None
    name = told.get(semconv.EVALUATION_NAME)
    at_ns = record.time_unix_nano or record.observed_time_unix_nano
    about = {key: value for key in _SUBJECTS if isinstance(value := told.get(key), str) and value}
    placed = len(record.trace_id) == 16 and any(record.trace_id)
    if not isinstance(name, str) or not name or at_ns > 2**63 - 1 or not (placed or about):
        return None
    digits = hashlib.blake2b(record.SerializeToString(deterministic=True), digest_size=24).digest()
    parent = record.span_id if placed and len(record.span_id) == 8 and any(record.span_id) else None
    return Span(
        trace_id=(record.trace_id if placed else digits[:16]).hex(),
        span_id=digits[16:].hex(),
        parent_span_id=None if parent is None else parent.hex(),
        name=f"evaluate {name}",
        start_ns=at_ns,
        end_ns=at_ns,
        attributes={**about, **{key: told[key] for key in _WHO if key in told}},
        events=(SpanEvent(semconv.EVALUATION_EVENT, at_ns, told),),
        scope=SCOPE,
    )
