"""OpenAI Agents SDK: a handoff from one agent to another that has a tool; runs in one piece and streamed."""

import openai
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool

from benchmarks.capture.scenarios import KEY, MODEL, Scenario, Task


@function_tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


def _triage(task: Task, client: openai.AsyncOpenAI) -> Agent:
    model = OpenAIChatCompletionsModel(MODEL, client)
    expert = Agent("expert", instructions=task.instructions("expert"), tools=[weather], model=model)
    return Agent("triage", instructions=task.instructions("triage"), handoffs=[expert], model=model)


async def asynchronous(task: Task) -> None:
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=KEY, max_retries=0) as client:
        await Runner.run(_triage(task, client), task.question)


async def stream(task: Task) -> None:
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=KEY, max_retries=0) as client:
        running = Runner.run_streamed(_triage(task, client), task.question)
        async for _ in running.stream_events():
            pass


SCENARIO = Scenario(None, asynchronous, stream)
