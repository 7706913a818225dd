"""What no instrumentation can avoid that asks for ids: an HTTP client reads an answer that is larger."""

import statistics
import time

import httpx

from benchmarks.capture.programs.agent import CASES, QUESTION

_ROUNDS = 200


def larger_answer_ms(engine: str) -> float:
    """Return CPU a call, of the reading thread, that the ids and logprobs cost whoever only reads the bytes."""
    model, extra = CASES["ids-asked"]
    small = {"model": model, "messages": QUESTION, "max_tokens": 256}
    with httpx.Client(headers={"accept-encoding": "identity"}) as client:

        def cpu_s(body: dict) -> float:
            began_s = time.thread_time()
            client.post(f"{engine}/v1/chat/completions", json=body).raise_for_status()
            return time.thread_time() - began_s

        # One after the other, so that whatever else the machine does falls on both.
        added_s = [cpu_s({**small, **extra}) - cpu_s(small) for _ in range(_ROUNDS)]
    return statistics.median(added_s[_ROUNDS // 10 :]) * 1e3
