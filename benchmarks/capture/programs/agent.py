"""A program, run as a process, that calls a model through the openai client, with one instrumentation or none.

    python -m benchmarks.capture.programs.agent --instrument ours --engine URL --telemetry URL --case text

Each line ``go N`` on standard input makes N calls and is answered with what they cost, delivery included; ``end`` is
answered with what was captured, and ends the program. Only the client is imported from the project, and only for
``ours``: the peers' environment does not have it.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

# What the program asks for, in each case: (model, extra body).
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ids-asked": ("sized:2000:256", {"return_token_ids": True, "logprobs": True}),
    "ids-added": ("sized:2000:256", {}),
    "text": ("sized:100:64", {}),
}
QUESTION = [
    {"role": "system", "content": "You are a careful assistant. " * 10},
    {"role": "user", "content": "What is the capital of the country with the longest coast? " * 10},
]


_ended: list[None] = []
"""One entry for each span of a peer: whether it instruments this version of the client at all."""


def _ours(telemetry: str, engine: str, case: str) -> Callable[[], object]:
    import lightning_instrumentation as lt

    # Plain text stands for a server that the user does not trust: nothing is added to requests there.
    lt.init(telemetry, trusted_hosts=() if case == "text" else (engine,), agent="benchmark")
    return lambda: lt.flush(30.0)


def _batch_provider(telemetry: str) -> Any:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    class Counter(SpanProcessor):
        def on_end(self, span: Any) -> None:
            _ended.append(None)

    provider = TracerProvider()
    provider.add_span_processor(Counter())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{telemetry}/v1/traces")))
    trace.set_tracer_provider(provider)
    return provider


def _openinference(telemetry: str, engine: str, case: str) -> Callable[[], object]:
    from openinference.instrumentation.openai import OpenAIInstrumentor  # pyright: ignore[reportMissingImports]

    provider = _batch_provider(telemetry)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    return lambda: provider.force_flush(30_000)


def _official(telemetry: str, engine: str, case: str) -> Callable[[], object]:
    # Put messages on the span, as ours and OpenInference do.
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor  # pyright: ignore[reportMissingImports]

    provider = _batch_provider(telemetry)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    return lambda: provider.force_flush(30_000)


INSTRUMENTATIONS: dict[str, Callable[[str, str, str], Callable[[], object]]] = {
    "none": lambda telemetry, engine, case: lambda: None,
    "ours": _ours,
    "openinference": _openinference,
    "official": _official,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--instrument", choices=INSTRUMENTATIONS, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--telemetry", required=True)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--no-delivery", action="store_true", help="do not wait until the spans are delivered")
    options = parser.parse_args()
    deliver = INSTRUMENTATIONS[options.instrument](options.telemetry, options.engine, options.case)

    import openai

    client = openai.OpenAI(base_url=f"{options.engine}/v1", api_key="unused", max_retries=0)
    model, extra = CASES[options.case]
    question: Any = QUESTION

    def call() -> Any:
        return client.chat.completions.create(model=model, messages=question, max_tokens=256, extra_body=extra)

    def block(calls: int) -> dict[str, Any]:
        walls_s, calls_cpu_s = [], []
        began_s = time.process_time()
        for _ in range(calls):
            sent_s, thread_began_s = time.perf_counter(), time.thread_time()
            call()
            calls_cpu_s.append(time.thread_time() - thread_began_s)
            walls_s.append(time.perf_counter() - sent_s)
        if not options.no_delivery:
            deliver()
        cpu_s = time.process_time() - began_s
        return {
            "cpu_ms": cpu_s / calls * 1e3,
            "calls_cpu_ms": [one_s * 1e3 for one_s in calls_cpu_s],
            "delivery_cpu_ms": (cpu_s - sum(calls_cpu_s)) / calls * 1e3,
            "wall_p50_ms": statistics.median(walls_s) * 1e3,
        }

    print(json.dumps({"answered": bool(call().choices)}), flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "end":
            break
        print(json.dumps(block(int(rest[0]))), flush=True)
    print(json.dumps(_captured(options.instrument)), flush=True)


def _captured(instrument: str) -> dict[str, Any]:
    if instrument != "ours":
        return {"created": len(_ended)}
    import lightning_instrumentation as lt

    stats = lt.stats()
    return {"created": stats.created, "dropped": stats.dropped, "failed": dict(stats.failed)}


if __name__ == "__main__":
    main()
