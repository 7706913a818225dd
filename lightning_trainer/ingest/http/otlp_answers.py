"""Answers to OTLP exporters: a response of the signal's type, or a Status with one sentence, in the request's encoding.

Source: OpenTelemetry Protocol specification 1.x, OTLP/HTTP response (google.rpc.Status; its ``code`` may be left out).
"""

from collections.abc import Mapping

import orjson
from fastapi import Response
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Status

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
SIGNALS = ("traces", "logs", "metrics")
TAILS = tuple(f"/{signal}" for signal in SIGNALS)
PATHS = frozenset(f"/v1/{signal}" for signal in SIGNALS)


def media_type_of(headers: Mapping[str, str]) -> str:
    """Return a request's media type, in lower case and without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def acceptance(media_type: str, *, rejected_spans: int = 0, message: str = "") -> Response:
    """Return the answer to an accepted request; the empty answers for logs and metrics are the same."""
    if media_type == JSON:
        partial = {"rejectedSpans": str(rejected_spans), "errorMessage": message}
        return Response(orjson.dumps({"partialSuccess": partial} if message else {}), media_type=JSON)
    answer = ExportTraceServiceResponse()
    if message:
        answer.partial_success.rejected_spans = rejected_spans
        answer.partial_success.error_message = message
    return Response(answer.SerializeToString(), media_type=PROTOBUF)


def refusal(media_type: str, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error."""
    given = None if headers is None else dict(headers)
    if media_type == PROTOBUF:
        # A span's Status has its message in the same field as google.rpc.Status: field 2.
        return Response(Status(message=sentence).SerializeToString(), status, given, PROTOBUF)
    return Response(orjson.dumps({"message": sentence}), status, given, JSON)
