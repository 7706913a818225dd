"""Whether the size is held while a client writes, and how long the client waits for it."""

import time
import urllib.request
from pathlib import Path

from lightning_instrumentation import semconv
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.common.daemons import policy_process
from benchmarks.common.history import History
from benchmarks.common.rows import Row, at_most
from lightning_trainer.otlp.span_codec import span_to_proto
from lightning_trainer.types import Span

_AT_ONCE = 500


def measure(folder: Path, history: History, *, spans: int) -> list[Row]:
    """Write ``spans`` spans into a store that is nearly at its limit already."""
    limit = int(max(1.05 * history.bytes + 64 * 2**20, 96 * 2**20))
    store = history.state_dir / "lightning.sqlite"
    most, waits = 0, []
    with policy_process(history.state_dir, f"{limit}B") as (url, _, _):
        for number in range(spans // _AT_ONCE):
            body = _delivery(number)
            began = time.monotonic()
            request = urllib.request.Request(
                f"{url}/v1/traces", data=body, headers={"content-type": "application/x-protobuf"}
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                response.read()
            waits.append(time.monotonic() - began)
            most = max(most, _on_disk(store))
    written = spans // _AT_ONCE * _AT_ONCE
    return [
        at_most(
            "store",
            f"size while {written:,} spans are written",
            most / 2**20,
            limit / 2**20,
            "MiB",
            note=f"database and log, at most; {len(_delivery(0)) / 2**20:.1f} MiB a delivery",
        ),
        Row(
            "store", "a delivery of 500 spans while the oldest are deleted", 1000 * sorted(waits)[len(waits) // 2], "ms"
        ),
        Row("store", "the slowest of them", 1000 * max(waits), "ms"),
    ]


def _delivery(number: int) -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for index in range(_AT_ONCE):
        attempt = f"new-{number}-{index // 10}"
        about = {semconv.ATTEMPT_ID: attempt, semconv.ROLLOUT_ID: attempt, semconv.ROLLOUT_MODE: "evaluate"}
        about |= {semconv.ROLLOUT_ROOT: True} if index % 10 == 0 else {"text": "x" * 2000}
        trace, span_id = f"{2**100 + number * 100 + index // 10:032x}", f"{2**60 + number * _AT_ONCE + index:016x}"
        scope.spans.append(span_to_proto(Span(trace, span_id, None, "chat", 1, 2, about)))
    return request.SerializeToString()


def _on_disk(store: Path) -> int:
    files = (store.with_name(store.name + suffix) for suffix in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
