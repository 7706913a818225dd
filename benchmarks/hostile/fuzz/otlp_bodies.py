"""OTLP bodies, made by hand from the specification and then damaged field by field, in protobuf and in JSON."""

import base64
import gzip
import json
import math
import random
import struct
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from lightning_instrumentation import semconv
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from benchmarks.hostile.fuzz.mutation import bytes_mutated, mutated

_TIMES = (0, 1, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_NUMBERS = (0, 1, -1, 2**31, -(2**31), 2**63 - 1, -(2**63))
_REALS = (0.0, -0.0, 5e-324, 1e308, -1e308, 1e6, math.nan, math.inf, -math.inf)
_TEXTS = (
    "",
    "\x00",
    "x" * 20_000,
    "\u202e\x1b]52;c;eA==\x07",
    "[1, 2",
    '{"a": {"a": {}}}',
    "[" * 2000,
    "1e999",
    "\ufeff",
)


def attempt(name: str, *, reward: float | None = 1.0, task: str = "t") -> ExportTraceServiceRequest:
    """Return an ended attempt with one call of ``solver`` through the gateway, as the client and the gateway send it.

    Args:
        name: the attempt's; its rollout is ``r-NAME``, its response ``response-NAME``.
    """
    rng = random.Random(name)
    now = time.time_ns()
    trace, root, call, judge = rng.randbytes(16), rng.randbytes(8), rng.randbytes(8), rng.randbytes(8)
    own = {
        semconv.ROLLOUT_ID: f"r-{name}",
        semconv.ATTEMPT_ID: name,
        semconv.TASK_ID: task,
        semconv.AGENT_NAME: "solver",
    }
    said = [{"role": "user", "parts": [{"type": "text", "content": "Is it open?"}]}]
    of_call = {
        **own,
        semconv.OPERATION: semconv.CHAT,
        semconv.RESPONSE_ID: f"response-{name}",
        semconv.INPUT_MESSAGES: json.dumps(said),
        semconv.POLICY: "math",
        semconv.POLICY_VERSION: 0,
        semconv.PROMPT_TOKEN_IDS: struct.pack("<3i", 1, 2, 3),
        semconv.CHOICES: 1,
        semconv.response_token_ids(0): struct.pack("<2i", 7, 8),
        semconv.response_logprobs(0): struct.pack("<2f", -0.5, -0.25),
    }
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    _put(resource.resource.attributes, {"service.name": "agent", "process.pid": 1})
    for scope, spans in (
        (semconv.CLIENT_SCOPE, [(root, b"", "rollout", {**own, semconv.ROLLOUT_ROOT: True}, now - 5, now)]),
        (semconv.GATEWAY_SCOPE, [(call, root, "chat", of_call, now - 4, now - 2)]),
    ):
        made = resource.scope_spans.add()
        made.scope.name = scope
        for span_id, parent, title, attributes, start, end in spans:
            span = made.spans.add(trace_id=trace, span_id=span_id, parent_span_id=parent, name=title)
            span.start_time_unix_nano, span.end_time_unix_nano = start, end
            _put(span.attributes, attributes)
    if reward is not None:
        span = resource.scope_spans[0].spans.add(trace_id=trace, span_id=judge, parent_span_id=root, name="evaluate")
        span.start_time_unix_nano = span.end_time_unix_nano = now - 1
        _put(span.attributes, own)
        event = span.events.add(name=semconv.EVALUATION_EVENT, time_unix_nano=now - 1)
        _put(event.attributes, {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: reward})
    return request


@lru_cache(maxsize=256)
def _attempt_bytes(name: str) -> bytes:
    rng = random.Random(name)
    reward = rng.choice((0.0, 1.0, -1e6, 1e6, 0.1))
    return attempt(name, reward=reward, task=f"t{rng.randrange(50)}").SerializeToString()


@lru_cache(maxsize=256)
def _attempt_document(name: str) -> dict[str, Any]:
    return document_of(ExportTraceServiceRequest.FromString(_attempt_bytes(name)))


def protobuf(name: str, rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """Return a body and its headers."""
    request = ExportTraceServiceRequest.FromString(_attempt_bytes(name))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 5))):
        rng.choice(_CHANGES)(request, rng)
    raw = request.SerializeToString()
    if rng.random() < 0.25:
        raw = bytes_mutated(raw, rng)
    return _sent(raw, "application/x-protobuf", rng)


def as_json(name: str, rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """Return a body and its headers."""
    return _sent(mutated(_attempt_document(name), rng), "application/json", rng)


def document_of(request: ExportTraceServiceRequest) -> dict[str, Any]:
    """Return the same request in OTLP's JSON, whose ids are hexadecimal."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_pair(one) for one in resource.resource.attributes]},
                "scopeSpans": [
                    {"scope": {"name": scope.scope.name}, "spans": [_span(span) for span in scope.spans]}
                    for scope in resource.scope_spans
                ],
            }
            for resource in request.resource_spans
        ]
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "parentSpanId": span.parent_span_id.hex(),
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(span.start_time_unix_nano),
        "endTimeUnixNano": str(span.end_time_unix_nano),
        "attributes": [_pair(one) for one in span.attributes],
        "events": [
            {
                "name": one.name,
                "timeUnixNano": str(one.time_unix_nano),
                "attributes": [_pair(a) for a in one.attributes],
            }
            for one in span.events
        ],
        "status": {"code": 0},
    }


def _pair(pair: KeyValue) -> dict[str, Any]:
    value = pair.value
    match value.WhichOneof("value"):
        case "bool_value":
            shown: Any = {"boolValue": value.bool_value}
        case "int_value":
            shown = {"intValue": str(value.int_value)}
        case "double_value":
            shown = {"doubleValue": value.double_value}
        case "bytes_value":
            shown = {"bytesValue": base64.b64encode(value.bytes_value).decode()}
        case _:
            shown = {"stringValue": value.string_value}
    return {"key": pair.key, "value": shown}


def _put(attributes: Any, values: dict[str, Any]) -> None:
    for key, value in values.items():
        _set(attributes.add(key=key).value, value)


def _set(slot: AnyValue, value: Any) -> None:
    match value:
        case bool():
            slot.bool_value = value
        case int():
            slot.int_value = value
        case float():
            slot.double_value = value
        case bytes():
            slot.bytes_value = value
        case _:
            slot.string_value = value


def _sent(raw: bytes, media_type: str, rng: random.Random) -> tuple[bytes, dict[str, str]]:
    roll = rng.random()
    if roll < 0.04:
        return gzip.compress(raw, 1), {"content-type": media_type, "content-encoding": "gzip"}
    if roll < 0.05:
        packed = bytes_mutated(gzip.compress(raw, 1), rng) if rng.random() < 0.8 else gzip.compress(bytes(2**22), 9)
        return packed, {"content-type": media_type, "content-encoding": "gzip"}
    if roll < 0.06:
        other = rng.choice(
            ("application/json", "application/x-protobuf", "text/plain", "", "application/json; charset=\xff")
        )
        return raw, {"content-type": other}
    return raw, {"content-type": media_type}


# -- what is changed in a protobuf body ------------------------------------------------------------------------------


def _any_span(request: ExportTraceServiceRequest, rng: random.Random) -> Span | None:
    spans = [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]
    return rng.choice(spans) if spans else None


def _extreme(slot: AnyValue, rng: random.Random, depth: int = 0) -> None:
    match rng.randrange(9):
        case 0:
            slot.int_value = rng.choice(_NUMBERS)
        case 1:
            slot.double_value = rng.choice(_REALS)
        case 2:
            slot.string_value = rng.choice(_TEXTS)
        case 3:
            slot.bytes_value = rng.randbytes(rng.choice((0, 1, 3, 4, 5, 400)))
        case 4:
            slot.bool_value = rng.random() < 0.5
        case 5:
            slot.Clear()
        case 6 | 7 if depth < 3:
            for _ in range(rng.choice((1, 3))):
                _extreme(slot.array_value.values.add(), rng, depth + 1)
        case 8 if depth < 3:
            for key in ("", "a", "a"):
                _extreme(slot.kvlist_value.values.add(key=key).value, rng, depth + 1)
        case _:
            inner = slot
            for _ in range(rng.choice((5, 29, 33, 90))):
                inner = inner.array_value.values.add()


def _attribute(request: ExportTraceServiceRequest, rng: random.Random) -> None:
    span = _any_span(request, rng)
    if span is not None and span.attributes:
        _extreme(rng.choice(span.attributes).value, rng)


def _event_attribute(request: ExportTraceServiceRequest, rng: random.Random) -> None:
    span = _any_span(request, rng)
    for event in () if span is None else span.events:
        if event.attributes:
            _extreme(rng.choice(event.attributes).value, rng)


def _known_attribute(request: ExportTraceServiceRequest, rng: random.Random) -> None:
    """Add an attribute whose name means something to us, with an absurd value."""
    span = _any_span(request, rng)
    if span is not None:
        _extreme(span.attributes.add(key=rng.choice(_NAMES)).value, rng)


def _twice(request: ExportTraceServiceRequest, rng: random.Random) -> None:
    span = _any_span(request, rng)
    if span is not None and span.attributes:
        span.attributes.add().CopyFrom(rng.choice(span.attributes))


def _clock(request: ExportTraceServiceRequest, rng: random.Random) -> None:
    span = _any_span(request, rng)
    if span is not None:
        span.start_time_unix_nano, span.end_time_unix_nano = rng.choice(_TIMES), rng.choice(_TIMES)


def _ids(request: ExportTraceServiceRequest, rng: random.Random) -> None:
    span = _any_span(request, rng)
    if span is not None:
        field = rng.choice(("trace_id", "span_id", "parent_span_id"))
        setattr(span, field, rng.choice((b"", bytes(16), bytes(8), rng.randbytes(7), rng.randbytes(400), span.span_id)))


def _missing(request: ExportTraceServiceRequest, rng: random.Random) -> None:
    span = _any_span(request, rng)
    if span is not None and span.attributes:
        del span.attributes[rng.randrange(len(span.attributes))]


def _names(request: ExportTraceServiceRequest, rng: random.Random) -> None:
    span = _any_span(request, rng)
    if span is not None:
        span.name = rng.choice(_TEXTS)
        span.kind = rng.choice((0, 1, 5, 99))  # pyright: ignore[reportAttributeAccessIssue]
        span.status.code = rng.choice((0, 2, 77))  # pyright: ignore[reportAttributeAccessIssue]
        span.status.message = rng.choice(_TEXTS)


def _scope(request: ExportTraceServiceRequest, rng: random.Random) -> None:
    scopes = [scope for resource in request.resource_spans for scope in resource.scope_spans]
    rng.choice(scopes).scope.name = rng.choice((*_TEXTS, semconv.GATEWAY_SCOPE, semconv.GATEWAY_NOTE_SCOPE, *_SCOPES))


def _many(request: ExportTraceServiceRequest, rng: random.Random) -> None:
    span = _any_span(request, rng)
    if span is not None:
        for _ in range(rng.choice((2, 40))):
            request.resource_spans[0].scope_spans[0].spans.add().CopyFrom(span)


_SCOPES = ("openinference.instrumentation.langchain", "opentelemetry.instrumentation.openai", "ai", "lightning.rewards")
_NAMES = (
    *(value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str) and "." in value),
    *(semconv.response_token_ids(0), semconv.response_logprobs(0), semconv.response_support(0)),
    *("llm.input_messages.0.message.role", "llm.input_messages.99999999.message.content", "gen_ai.prompt.0.content"),
    *("gen_ai.completion.18446744073709551616.role", "ai.prompt.messages", "ai.response.toolCalls", "input.value"),
    *("llm.token_count.prompt", "openinference.span.kind", "ai.operationId", "agentops.span.kind"),
)
_CHANGES: tuple[Callable[[ExportTraceServiceRequest, random.Random], None], ...] = (
    *(_attribute, _attribute, _attribute, _event_attribute, _known_attribute, _known_attribute),
    *(_twice, _clock, _ids, _missing, _names, _scope, _many),
)
