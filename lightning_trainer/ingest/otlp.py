"""``POST /v1/traces``: the OTLP/HTTP receiver.

Invariant: 2xx is answered only after the commit, so whoever reads it may forget the spans. A span that cannot be
stored is counted in ``partial_success`` and the rest goes on; a body that cannot be read is refused as a whole.
Source: OpenTelemetry Protocol specification 1.x, section OTLP/HTTP (binary protobuf).
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lightning_trainer.errors import MalformedTelemetryError, StoreError
from lightning_trainer.ingest.bodies import BodyMemory, BodyTooLargeError, BodyTooSlowError, TooManyBodiesError, gunzip
from lightning_trainer.store.span_codec import attributes_from_proto, received_span
from lightning_trainer.types import AttributeValue, Span, SpanSink

logger = logging.getLogger(__name__)

_PROTOBUF = "application/x-protobuf"
_RETRY_AFTER_S = 1
_SMALL_BYTES = 2**15


@dataclass(frozen=True, slots=True)
class Export:
    """The spans of one request, and one sentence for each span that is not among them."""

    spans: tuple[Span, ...]
    rejected: tuple[str, ...] = ()


def decode_request(body: bytes) -> Export:
    """Read a serialised ExportTraceServiceRequest.

    Raises:
        MalformedTelemetryError: it is not one.
    """
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise MalformedTelemetryError(f"the body is not an ExportTraceServiceRequest in protobuf: {error}") from error
    spans: list[Span] = []
    rejected: list[str] = []
    # A client's delivery is many requests laid end to end, each with the same resource.
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


def otlp_router(sink: SpanSink, *, max_body_bytes: int = 64 * 2**20, max_in_flight: int = 32) -> APIRouter:
    """Return the receiver.

    Args:
        sink: where spans are made durable.
        max_body_bytes: of a body, as sent and inflated; more is answered 413.
        max_in_flight: bodies decoded and stored at once; more are answered 503 and come again later, as are bodies
            beyond four times ``max_body_bytes`` of memory in all.
    """
    # One thread: decoding holds the interpreter's lock, and several of them would only take it from each other.
    decoder = ThreadPoolExecutor(1, thread_name_prefix="ingest-decoder")

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        try:
            yield
        finally:
            decoder.shutdown(wait=False)

    router = APIRouter(lifespan=lifespan)
    in_flight = 0
    memory = BodyMemory(4 * max_body_bytes)

    @router.post("/v1/traces")
    async def traces(request: Request) -> Response:
        nonlocal in_flight
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != _PROTOBUF:
            return _refusal(415, f"content type {media_type or 'missing'!r}: send OTLP as {_PROTOBUF}")
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", ""):
            return _refusal(415, f"content encoding {encoding!r}: send gzip or none")
        try:
            async with memory.body(request.stream(), limit=max_body_bytes) as body:
                if in_flight >= max_in_flight:
                    raise TooManyBodiesError(f"{in_flight} bodies are being stored already; try again")
                in_flight += 1
                try:
                    return await _receive(body, encoding)
                finally:
                    in_flight -= 1
        except BodyTooLargeError as error:
            return _refusal(413, str(error))
        except BodyTooSlowError as error:
            return _refusal(408, str(error), retry=True)
        except TooManyBodiesError as error:
            return _refusal(503, str(error), retry=True)

    async def _receive(body: bytes, encoding: str) -> Response:
        try:
            # A few spans are decoded faster than a thread is woken; what is packed may be large.
            small = encoding != "gzip" and len(body) <= _SMALL_BYTES
            export = _decode(body, encoding) if small else await _off_the_loop(body, encoding)
        except BodyTooLargeError as error:
            return _refusal(413, str(error))
        except MalformedTelemetryError as error:
            return _refusal(400, str(error))
        try:
            await sink.append(export.spans)
        except MalformedTelemetryError as error:
            return _refusal(400, str(error))
        except StoreError as error:
            return _refusal(503, str(error), retry=True)
        return _acceptance(export)

    async def _off_the_loop(body: bytes, encoding: str) -> Export:
        return await asyncio.get_running_loop().run_in_executor(decoder, _decode, body, encoding)

    def _decode(body: bytes, encoding: str) -> Export:
        return decode_request(gunzip(body, limit=max_body_bytes) if encoding == "gzip" else body)

    return router


def _acceptance(export: Export) -> Response:
    answer = ExportTraceServiceResponse()
    if export.rejected:
        logger.warning("%d spans were rejected, the first because: %s", len(export.rejected), export.rejected[0])
        answer.partial_success.rejected_spans = len(export.rejected)
        answer.partial_success.error_message = export.rejected[0]
    return Response(answer.SerializeToString(), media_type=_PROTOBUF)


def _refusal(status: int, sentence: str, *, retry: bool = False) -> Response:
    logger.warning("OTLP request refused with %d: %s", status, sentence)
    headers = {"retry-after": str(_RETRY_AFTER_S)} if retry else None
    return Response(sentence, status_code=status, media_type="text/plain", headers=headers)
