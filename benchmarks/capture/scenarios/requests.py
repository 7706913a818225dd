"""Plain requests: a program that posts its chat requests itself; there is no async."""

from typing import Any

import lightning_instrumentation as lt
import requests

from benchmarks.capture.scenarios import MODEL, Scenario, Task


def _post(task: Task, *, stream: bool) -> Any:
    body = {"model": MODEL, "messages": task.messages("poster"), "stream": stream}
    answer = requests.post(f"{task.base_url}/chat/completions", json=body, stream=stream, timeout=60)
    answer.raise_for_status()
    return answer


@lt.agent("poster")
def sync(task: Task) -> None:
    _post(task, stream=False).json()


@lt.agent("poster")
def stream(task: Task) -> None:
    with _post(task, stream=True) as answer:
        for _ in answer.iter_lines():
            pass


SCENARIO = Scenario(sync, None, stream)
