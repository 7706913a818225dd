"""Microsoft Agent Framework: an agent with a tool, over chat completions."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

from benchmarks.frameworks.program import KEY, MODEL, Task


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def play(task: Task) -> None:
    client = OpenAIChatCompletionClient(MODEL, base_url=task.base_url, api_key=KEY)
    agent = Agent(client, task.system, tools=[weather])
    if task.stream:
        async for _ in agent.run(task.question, stream=True):
            pass
    else:
        await agent.run(task.question)
