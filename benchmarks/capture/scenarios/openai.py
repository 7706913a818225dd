"""The OpenAI client itself: chat completions, raw responses, tools, structured output and streams."""

from functools import cache
from typing import Any

import lightning_instrumentation as lt
import openai

from benchmarks.capture.scenarios import KEY, MODEL, Scenario, Task

TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@cache
def client(base_url: str) -> openai.OpenAI:
    """Return one client for all rollouts, as programs do."""
    return openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0)


@lt.agent("caller")
def sync(task: Task) -> None:
    chat = client(task.base_url).chat.completions
    messages = task.messages("caller")
    first = chat.create(model=MODEL, messages=messages, tools=[TOOL])
    call: Any = (first.choices[0].message.tool_calls or [])[0]
    spoken: Any = [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    chat.create(model=MODEL, messages=[*messages, *spoken], tools=[TOOL])
    chat.with_raw_response.create(model=MODEL, messages=messages).parse()
    reviewer(task)


@lt.agent("reviewer")
def reviewer(task: Task) -> None:
    """An agent inside an agent."""
    client(task.base_url).chat.completions.create(model=MODEL, messages=task.messages("reviewer"))


@lt.agent("caller")
async def asynchronous(task: Task) -> None:
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=KEY, max_retries=0) as own:
        await own.chat.completions.create(model=MODEL, messages=task.messages("caller"))
        await own.chat.completions.with_raw_response.create(model=MODEL, messages=task.messages("caller"))


@lt.agent("streamer")
def stream(task: Task) -> None:
    chat, messages = client(task.base_url).chat.completions, task.messages("streamer")
    for _ in chat.create(model=MODEL, messages=messages, stream=True):
        pass
    for _ in chat.create(model=MODEL, messages=messages, tools=[TOOL], stream=True):
        pass
    with chat.stream(model=MODEL, messages=messages) as events:
        for _ in events:
            pass


SCENARIO = Scenario(sync, asynchronous, stream)
