"""What a typical model call leaves on a span: 512 prompt ids, 128 sampled ids with logprobs, and the messages.

Spans are encoded once, with places to fill in, since millions of them are needed: only ids and numbers differ.
"""

import gzip
import json
import random
import struct
from collections.abc import Iterator

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids

PROMPT, SAMPLED = 512, 128
_TRACE, _SPAN = bytes(range(1, 17)), bytes(range(101, 109))
_PLACES = {"attempt": b"attempt-PLACE-00", "response": b"chatcmpl-PLACE-0"}
_SPANS_OF_ATTEMPT = 8
_KINDS = 16


def attributes(seed: int = 0) -> dict[str, str | int | bytes | list[str]]:
    source = random.Random(seed)
    ids = [source.randrange(150_000) for _ in range(PROMPT + SAMPLED)]
    asked = [{"role": "user", "parts": [{"type": "text", "content": "how much is 23 + 19 ? " * 90}]}]
    said = [{"role": "assistant", "parts": [{"type": "text", "content": "let us add them up " * 25}]}]
    return {
        semconv.OPERATION: semconv.CHAT,
        semconv.REQUEST_MODEL: "policy",
        semconv.AGENT_NAME: "benchmark",
        semconv.INPUT_TOKENS: PROMPT,
        semconv.OUTPUT_TOKENS: SAMPLED,
        semconv.FINISH_REASONS: ["stop"],
        semconv.CHOICES: 1,
        semconv.INPUT_MESSAGES: json.dumps(asked),
        semconv.OUTPUT_MESSAGES: json.dumps(said),
        semconv.PROMPT_TOKEN_IDS: pack_token_ids(ids[:PROMPT]),
        semconv.response_token_ids(0): pack_token_ids(ids[PROMPT:]),
        semconv.response_logprobs(0): pack_logprobs([-source.random() for _ in range(SAMPLED)]),
    }


class Bodies:
    """OTLP requests of many spans, made of requests of one span each, laid end to end as the client sends them.

    The token ids of neighbors differ, so that compression saves no more than in real bodies, and the ids of traces and
    spans are scattered, so that the store's index grows in all places, as it does with random ones.
    """

    def __init__(self) -> None:
        self._templates = [_Template(_span(seed)) for seed in range(_KINDS)]
        self.span_bytes = self._templates[0].size

    def span(self, number: int) -> bytes:
        attempt = number // _SPANS_OF_ATTEMPT
        return self._templates[number % _KINDS].filled(
            trace=struct.pack(">QQ", _scattered(attempt + 1), attempt + 1),
            span=struct.pack(">Q", _scattered(number + 1)),
            attempt=b"a%015d" % attempt,
            response=b"r%015d" % number,
        )

    def requests(self, spans: int, *, at_once: int = 512, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (number of spans, gzipped body) until there were ``spans`` of them, numbered from ``first``."""
        for begin in range(0, spans, at_once):
            count = min(at_once, spans - begin)
            body = b"".join(self.span(first + begin + offset) for offset in range(count))
            yield count, gzip.compress(body, compresslevel=1)


def _scattered(number: int) -> int:
    """Return a scattered id. Different numbers stay different: the factor is odd (2**64 over the golden ratio)."""
    return number * 0x9E3779B97F4A7C15 % 2**64


class _Template:
    def __init__(self, text: bytes) -> None:
        self.size = len(text)
        marks = {"trace": _TRACE, "span": _SPAN, **_PLACES}
        self._pieces: list[tuple[bytes, str]] = []
        position = 0
        for start, name in sorted((text.index(mark), name) for name, mark in marks.items()):
            self._pieces.append((text[position:start], name))
            position = start + len(marks[name])
        self._tail = text[position:]

    def filled(self, **values: bytes) -> bytes:
        return b"".join([part for piece, name in self._pieces for part in (piece, values[name])]) + self._tail


def _span(seed: int) -> bytes:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from lightning_trainer.otlp.span_codec import attributes_to_proto

    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    of_resource.resource.attributes.extend(attributes_to_proto({"service.name": "benchmark", "process.pid": 1}))
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name = semconv.CLIENT_SCOPE
    span = of_scope.spans.add(
        trace_id=_TRACE,
        span_id=_SPAN,
        name="chat policy",
        start_time_unix_nano=1_700_000_000_000_000_000,
        end_time_unix_nano=1_700_000_001_000_000_000,
    )
    filled = attributes(seed) | {
        semconv.ATTEMPT_ID: _PLACES["attempt"].decode(),
        semconv.ROLLOUT_ID: "rollout",
        semconv.RESPONSE_ID: _PLACES["response"].decode(),
    }
    span.attributes.extend(attributes_to_proto({k: tuple(v) if isinstance(v, list) else v for k, v in filled.items()}))
    return request.SerializeToString()
