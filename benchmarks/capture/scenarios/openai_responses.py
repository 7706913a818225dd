"""The OpenAI client's Responses API. The protocol carries no token ids, so there are none to compare."""

import lightning_instrumentation as lt
import openai

from benchmarks.capture.scenarios import KEY, MODEL, Scenario, Task


def _client(task: Task) -> openai.OpenAI:
    return openai.OpenAI(base_url=task.base_url, api_key=KEY, max_retries=0)


@lt.agent("responder")
def sync(task: Task) -> None:
    with _client(task) as client:
        client.responses.create(model=MODEL, instructions=task.instructions("responder"), input=task.question)


@lt.agent("responder")
async def asynchronous(task: Task) -> None:
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=KEY, max_retries=0) as client:
        await client.responses.create(model=MODEL, instructions=task.instructions("responder"), input=task.question)


@lt.agent("responder")
def stream(task: Task) -> None:
    with _client(task) as client:
        asked = task.instructions("responder")
        for _ in client.responses.create(model=MODEL, instructions=asked, input=task.question, stream=True):
            pass


SCENARIO = Scenario(sync, asynchronous, stream)
