"""A process that writes numbered spans, through our client or a BatchSpanProcessor with OTLP/HTTP, and ends.

    python -m benchmarks.capture.programs.writer --with ours --endpoint URL --name w0 --spans 1000 [--fork 3]
    python -m benchmarks.capture.programs.writer --with ours --endpoint URL --engine URL --calls 20  # then killed

A span is called ``{name}-{number}``: the names in the store show which spans are lost and which are doubled.
"""

import argparse
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common.payload import attributes
from benchmarks.common.processes import own_cpu_s, own_peak_mib

Write = Callable[[str], None]
Finish = Callable[[], object]


def _ours(endpoint: str, patience_s: float) -> tuple[Write, Finish]:
    import lightning_instrumentation as lt
    from lightning_instrumentation.runtime import runtime
    from lightning_instrumentation.spans import lifecycle

    lt.init(endpoint, service_name="writer")
    said = attributes()

    def write(name: str) -> None:
        # Looked up each time: a forked child has a tracer of its own.
        started = runtime()
        assert started is not None
        lifecycle.end(lifecycle.begin(started.tracer, name, said))

    return write, lambda: lt.flush(patience_s)


def _standard(endpoint: str, patience_s: float) -> tuple[Write, Finish]:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
    tracer, said = provider.get_tracer("writer"), attributes()

    def write(name: str) -> None:
        tracer.start_span(name, attributes=said).end()

    return write, lambda: provider.force_flush(int(patience_s * 1000))


def _write(write: Write, name: str, spans: int, seconds: float) -> None:
    began_s = time.monotonic()
    for number in range(spans):
        write(f"{name}-{number}")
        early_s = began_s + seconds * number / spans - time.monotonic()
        if early_s > 0.002:
            time.sleep(early_s)


def _call_and_die(options: argparse.Namespace, write: Write) -> None:
    """Call a model, print each response id when the call has returned, and kill this process right after the last."""
    import openai

    client = openai.OpenAI(base_url=f"{options.engine}/v1", api_key="unused", max_retries=0)
    question: Any = [{"role": "system", "content": "AGENT[doomed]"}, {"role": "user", "content": "hello"}]
    for number in range(options.calls):
        answer = client.chat.completions.create(model="m", messages=question)
        if options.client == "standard":
            write(answer.id)
        line = json.dumps(answer.id) + "\n"
        os.write(1, line.encode())
        if number == options.calls - 1:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--with", dest="client", choices=("ours", "standard"), required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--name", default="w")
    parser.add_argument("--spans", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0, help="spread the spans over this time")
    parser.add_argument("--fork", type=int, default=0, help="children, each of which writes as many")
    parser.add_argument("--patience-s", type=float, default=120.0, help="of the flush at the end")
    parser.add_argument("--engine")
    parser.add_argument("--calls", type=int, default=0)
    options = parser.parse_args()
    make = _ours if options.client == "ours" else _standard
    write, finish = make(options.endpoint, options.patience_s)
    if options.calls:
        _call_and_die(options, write)
    _write(write, options.name, options.spans, options.seconds)
    fork = multiprocessing.get_context("fork")
    children = [
        fork.Process(target=_write, args=(write, f"{options.name}f{number}", options.spans, options.seconds))
        for number in range(options.fork)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    written_cpu_s = own_cpu_s()
    finish()
    print(json.dumps({"peak_mib": own_peak_mib(), "cpu_s": written_cpu_s}), flush=True)


if __name__ == "__main__":
    main()
