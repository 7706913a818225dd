"""The Anthropic client: Messages. The protocol carries no token ids, so there are none to compare."""

from typing import Any

import anthropic
import lightning_instrumentation as lt

from benchmarks.capture.scenarios import KEY, MODEL, Scenario, Task


def _asking(task: Task) -> dict[str, Any]:
    messages = [{"role": "user", "content": task.question}]
    return {"model": MODEL, "max_tokens": 64, "system": task.instructions("claude"), "messages": messages}


@lt.agent("claude")
def sync(task: Task) -> None:
    with anthropic.Anthropic(base_url=task.engine, api_key=KEY, max_retries=0) as client:
        client.messages.create(**_asking(task))


@lt.agent("claude")
async def asynchronous(task: Task) -> None:
    async with anthropic.AsyncAnthropic(base_url=task.engine, api_key=KEY, max_retries=0) as client:
        await client.messages.create(**_asking(task))


@lt.agent("claude")
def stream(task: Task) -> None:
    with (
        anthropic.Anthropic(base_url=task.engine, api_key=KEY, max_retries=0) as client,
        client.messages.stream(**_asking(task)) as events,
    ):
        for _ in events:
            pass


SCENARIO = Scenario(sync, asynchronous, stream)
