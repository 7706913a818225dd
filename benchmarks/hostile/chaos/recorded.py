"""An undisturbed run of a real agent: what it sent, what was trained, and every version's weights."""

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from benchmarks.hostile.chaos.supervised import PATIENCE_S, Supervised

SpanId = tuple[str, str]
_ROWS = (
    "SELECT trace_id, span_id, scope, spans.body, resources.body, step FROM spans"
    " JOIN resources ON resources.id = resource_id JOIN assignments USING (attempt_id) ORDER BY seq"
)


@dataclass(frozen=True, slots=True)
class Message:
    """An OTLP body and the spans in it."""

    spans: tuple[SpanId, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class StepMessages:
    """A step's messages. The gateway's spans are committed before a call is answered, so they come first."""

    of_gateway: list[Message]
    of_agent: list[Message]


@dataclass(frozen=True, slots=True)
class Undisturbed:
    checksums: dict[int, str]
    """Of each version's weights."""
    steps: list[StepMessages]
    spans: set[SpanId]
    trained: list[str]


def record(folder: Path, steps: int, seed: int) -> Undisturbed:
    """Run an agent for ``steps`` steps, undisturbed, and return what it sent and what came of it.

    Raises:
        RuntimeError: the agent failed.
    """
    folder.mkdir()
    daemon = Supervised(folder)
    try:
        daemon.wait_for(0)
        environment = daemon.environment | {"OPENAI_BASE_URL": f"{daemon.url}/v1"}
        agent = [sys.executable, str(Path(__file__).with_name("agent.py")), str(steps)]
        done = subprocess.run(agent, env=environment, timeout=PATIENCE_S, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the agent failed: {done.stderr[-3000:]} {daemon.last_words()}")
        daemon.wait_for(steps)
        rows = daemon.rows(_ROWS)
        rng = random.Random(seed)
        of_steps = [[row for row in rows if row[5] == step] for step in range(1, steps + 1)]
        messages = [
            StepMessages(
                _messages([row for row in of_step if row[2] == "lightning.gateway"], rng),
                _messages([row for row in of_step if row[2] != "lightning.gateway"], rng),
            )
            for of_step in of_steps
        ]
        return Undisturbed(daemon.checksums(), messages, {row[:2] for row in rows}, daemon.trained())
    finally:
        daemon.stop()


def _messages(rows: list[tuple], rng: random.Random) -> list[Message]:
    """Return the spans in small bodies, in another order, some of them twice."""
    rng.shuffle(rows)
    made: list[Message] = []
    for batch in _batched(rows, 2):
        spans = [
            ResourceSpans(
                resource=Resource.FromString(resource),
                scope_spans=[ScopeSpans(scope=InstrumentationScope(name=scope), spans=[Span.FromString(body)])],
            )
            for _, _, scope, body, resource, _ in batch
        ]
        body = ExportTraceServiceRequest(resource_spans=spans).SerializeToString()
        made += [Message(tuple(row[:2] for row in batch), body)] * rng.choice((1, 1, 2))
    return made


def _batched(rows: Sequence[tuple], size: int) -> Iterator[Sequence[tuple]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
