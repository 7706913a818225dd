"""Plain httpx2 (the transport of newer clients): a program that posts its chat requests itself."""

from typing import Any

import httpx2
import lightning_instrumentation as lt

from benchmarks.capture.scenarios import MODEL, Scenario, Task


def _body(task: Task, *, stream: bool = False) -> dict[str, Any]:
    return {"model": MODEL, "messages": task.messages("poster"), "stream": stream}


def _url(task: Task) -> str:
    return f"{task.base_url}/chat/completions"


@lt.agent("poster")
def sync(task: Task) -> None:
    with httpx2.Client(timeout=60) as client:
        client.post(_url(task), json=_body(task)).raise_for_status()


@lt.agent("poster")
async def asynchronous(task: Task) -> None:
    async with httpx2.AsyncClient(timeout=60) as client:
        (await client.post(_url(task), json=_body(task))).raise_for_status()


@lt.agent("poster")
def stream(task: Task) -> None:
    with (
        httpx2.Client(timeout=60) as client,
        client.stream("POST", _url(task), json=_body(task, stream=True)) as answer,
    ):
        for _ in answer.iter_lines():
            pass


SCENARIO = Scenario(sync, asynchronous, stream)
