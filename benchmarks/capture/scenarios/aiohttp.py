"""Plain aiohttp: a program that posts its chat requests itself; asynchronous only."""

import aiohttp
import lightning_instrumentation as lt

from benchmarks.capture.scenarios import MODEL, Scenario, Task


async def _post(task: Task, *, stream: bool) -> None:
    body = {"model": MODEL, "messages": task.messages("poster"), "stream": stream}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{task.base_url}/chat/completions", json=body) as answer,
    ):
        if not stream:
            await answer.json()
            return
        async for _ in answer.content:
            pass


@lt.agent("poster")
async def asynchronous(task: Task) -> None:
    await _post(task, stream=False)


@lt.agent("poster")
async def streamed(task: Task) -> None:
    await _post(task, stream=True)


SCENARIO = Scenario(None, asynchronous, streamed)
