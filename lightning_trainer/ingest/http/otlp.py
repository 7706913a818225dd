"""``POST /v1/traces``: the OTLP/HTTP receiver. Of ``/v1/logs`` only evaluations are kept, of ``/v1/metrics`` nothing.

Invariant: 2xx is answered only after the commit, so a client that reads it may delete the spans. A span that cannot be
stored is counted in ``partial_success`` and the others are stored; an unreadable body is refused as a whole. Source:
OpenTelemetry Protocol specification 1.x, section OTLP/HTTP (binary protobuf and JSON).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import orjson
from fastapi import APIRouter, Request, Response
from google.protobuf.message import DecodeError
from lightning_instrumentation import semconv
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_trainer.errors import LightningError, MalformedTelemetryError, StoreError
from lightning_trainer.ingest.http.bodies import (
    BodyMemory,
    BodyTooLargeError,
    BodyTooSlowError,
    TooManyBodiesError,
    gunzip,
)
from lightning_trainer.ingest.http.otlp_answers import JSON, PROTOBUF, acceptance, media_type_of, refusal
from lightning_trainer.ingest.http.otlp_logs import read_logs
from lightning_trainer.ingest.normalizing import normalize_spans
from lightning_trainer.otlp.json_spans import parse_json, spans_of
from lightning_trainer.otlp.span_codec import attributes_from_proto, attributes_to_proto, received_span, span_to_proto
from lightning_trainer.types import AttributeValue, Span, SpanSink

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 1
_SMALL_BYTES = 2**15
_WHY_NOT_KEPT = {
    "logs": "words that an instrumentation sends as log records are not read: turn its content on for spans",
    "metrics": "calls and tokens are counted from spans",
}


@dataclass(frozen=True, slots=True)
class Export:
    """The spans of one request, and one sentence for each rejected span."""

    spans: tuple[Span, ...]
    rejected: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """One sentence for anything else that was left out."""


def decode_request(body: bytes) -> Export:
    """Read a serialized ExportTraceServiceRequest.

    Raises:
        MalformedTelemetryError: it is not one.
    """
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise MalformedTelemetryError(f"the body is not an ExportTraceServiceRequest in protobuf: {error}") from error
    spans: list[Span] = []
    rejected: list[str] = []
    # A client's delivery is many requests concatenated, each with the same resource.
    resources: dict[bytes, dict[str, AttributeValue]] = {}
    for of_resource in request.resource_spans:
        described = of_resource.resource.SerializeToString()
        resource = resources.get(described)
        if resource is None:
            resource = resources[described] = attributes_from_proto(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            scope = of_scope.scope.name
            for proto in of_scope.spans:
                try:
                    spans.append(received_span(proto, scope=scope, resource=resource))
                except MalformedTelemetryError as error:
                    rejected.append(str(error))
    return Export(tuple(spans), tuple(rejected))


def encode_request(spans: Sequence[Span]) -> bytes:
    """Write an ExportTraceServiceRequest.

    Raises:
        MalformedTelemetryError: a span cannot be written as OTLP.
    """
    request = ExportTraceServiceRequest()
    for span in spans:
        of_resource = request.resource_spans.add()
        of_resource.resource.attributes.extend(attributes_to_proto(span.resource))
        of_scope = of_resource.scope_spans.add()
        of_scope.scope.name = span.scope
        of_scope.spans.append(span_to_proto(span))
    return request.SerializeToString()


def decode_json_request(body: bytes) -> Export:
    """Read an ExportTraceServiceRequest in JSON.

    Raises:
        MalformedTelemetryError: it is not one.
    """
    try:
        document = parse_json(body)
    except orjson.JSONDecodeError as error:
        raise MalformedTelemetryError(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedTelemetryError(f"the body is a JSON {type(document).__name__}, not an ExportTraceServiceRequest")
    rejected: list[str] = []
    warnings: list[str] = []
    spans = tuple(spans_of(document, rejected, warnings, read=received_span))
    return Export(spans, tuple(rejected), tuple(warnings))


_REFUSED: dict[type[LightningError], int] = {
    BodyTooLargeError: 413,
    MalformedTelemetryError: 400,
    BodyTooSlowError: 408,
    TooManyBodiesError: 503,
    StoreError: 503,
}
_COME_AGAIN = (408, 503)

_DECODERS: dict[str, Callable[[bytes], Export]] = {PROTOBUF: decode_request, JSON: decode_json_request}


def otlp_router(
    sink: SpanSink,
    *,
    max_body_bytes: int = 64 * 2**20,
    max_in_flight: int = 32,
    not_kept: Counter[str] | None = None,
) -> APIRouter:
    """Return the receiver.

    Args:
        sink: makes spans durable.
        max_body_bytes: limit on a body, compressed and decompressed; more is answered 413.
        max_in_flight: limit on bodies decoded and stored at once; more are answered 503 (retry later), as are bodies
            beyond four times ``max_body_bytes`` of memory in total.
        not_kept: counts the requests of each signal that is answered but not kept.
    """
    receiver = _Receiver(sink, max_body_bytes, max_in_flight, Counter() if not_kept is None else not_kept)
    router = APIRouter(lifespan=receiver.lifespan)
    router.add_api_route("/v1/traces", receiver.traces, methods=["POST"])
    router.add_api_route("/v1/logs", receiver.logs, methods=["POST"])
    router.add_api_route("/v1/metrics", receiver.metrics, methods=["POST"])
    return router


class _Receiver:
    """The OTLP receiver, with one method per signal."""

    def __init__(self, sink: SpanSink, max_body_bytes: int, max_in_flight: int, not_kept: Counter[str]) -> None:
        self._sink = sink
        self._max_body_bytes = max_body_bytes
        self._max_in_flight = max_in_flight
        self._not_kept = not_kept
        self._memory = BodyMemory(4 * max_body_bytes)
        self._in_flight = 0
        # One thread: decoding holds the GIL, so several threads would only contend for it.
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="ingest-decoder")

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Shut down the decoder's thread with the app."""
        try:
            yield
        finally:
            self._decoder.shutdown(wait=False)

    async def traces(self, request: Request) -> Response:
        media_type = media_type_of(request.headers)
        if media_type not in _DECODERS:
            return _refuse(media_type, 415, _unknown_type(media_type))
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", ""):
            return _refuse(media_type, 415, f"content encoding {encoding!r}: send gzip or none")
        try:
            async with self._memory.body(request.stream(), limit=self._max_body_bytes) as body:
                with self._place():
                    export = await self._decoded(body, media_type, encoding)
                    await self._sink.append(normalize_spans(export.spans))
                    return _acceptance(media_type, export)
        except tuple(_REFUSED) as error:
            return _refuse(media_type, _status_of(error), str(error))

    async def logs(self, request: Request) -> Response:
        return await self._not_kept_signal("logs", request, self._keep_evaluations)

    async def metrics(self, request: Request) -> Response:
        return await self._not_kept_signal("metrics", request, _keep_nothing)

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Hold one of the ``max_in_flight`` slots for bodies being decoded and stored."""
        if self._in_flight >= self._max_in_flight:
            raise TooManyBodiesError(f"{self._in_flight} bodies are being stored already; try again")
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def _decoded(self, body: bytes, media_type: str, encoding: str) -> Export:
        # A few spans are decoded faster than a thread is woken; a compressed body may be large.
        if encoding != "gzip" and len(body) <= _SMALL_BYTES:
            return self._decode(body, media_type, encoding)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoder, self._decode, body, media_type, encoding)

    def _decode(self, body: bytes, media_type: str, encoding: str) -> Export:
        return _DECODERS[media_type](gunzip(body, limit=self._max_body_bytes) if encoding == "gzip" else body)

    async def _not_kept_signal(
        self, signal: str, request: Request, keep: Callable[[Request, str, bytes], Awaitable[bool]]
    ) -> Response:
        """Answer a request of a signal that is not kept, except for what ``keep`` stores of it.

        Args:
            keep: called with request, media type, and body; returns True if it stored everything.
        """
        media_type = media_type_of(request.headers)
        if media_type not in _DECODERS:
            return _refuse(media_type, 415, _unknown_type(media_type))
        try:
            async with self._memory.body(request.stream(), limit=self._max_body_bytes) as body:
                if await keep(request, media_type, body):
                    return acceptance(media_type)
        except tuple(_REFUSED) as error:
            return _refuse(media_type, _status_of(error), str(error))
        if not self._not_kept[signal]:
            logger.warning("%s are sent to /v1/%s and are not kept: %s", signal, signal, _WHY_NOT_KEPT[signal])
        self._not_kept[signal] += 1
        return acceptance(media_type)

    async def _keep_evaluations(self, request: Request, media_type: str, body: bytes) -> bool:
        """Store the evaluations among log records; True if there were no other records."""
        # Searching the raw bytes for the name is faster than searching the decoded records.
        packed = request.headers.get("content-encoding", "").strip().lower() == "gzip"
        plain = gunzip(body, limit=self._max_body_bytes) if packed else body
        if semconv.EVALUATION_EVENT.encode() not in plain:
            return False
        events = read_logs(plain, media_type)
        await self._sink.append(events.evaluations)
        return not events.others


async def _keep_nothing(request: Request, media_type: str, body: bytes) -> bool:
    return False


def _acceptance(media_type: str, export: Export) -> Response:
    if export.rejected:
        logger.warning("%d spans were rejected, the first because: %s", len(export.rejected), export.rejected[0])
    message = next(iter((*export.rejected, *export.warnings)), "")
    return acceptance(media_type, rejected_spans=len(export.rejected), message=message)


def _unknown_type(media_type: str) -> str:
    return f"content type {media_type or 'missing'!r}: send OTLP as {PROTOBUF} or {JSON}"


def _status_of(error: Exception) -> int:
    return next(status for kind, status in _REFUSED.items() if isinstance(error, kind))


def _refuse(media_type: str, status: int, sentence: str) -> Response:
    logger.warning("OTLP request refused with %d: %s", status, sentence)
    headers = {"retry-after": str(_RETRY_AFTER_S)} if status in _COME_AGAIN else None
    return refusal(media_type, status, sentence, headers)
