"""Pydantic AI: an agent with a tool, run whole or as a stream of text."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.frameworks.program import KEY, MODEL, Task


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def play(task: Task) -> None:
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=task.base_url, api_key=KEY))
    agent = Agent(model, instructions=task.system, tools=[weather])
    if task.stream:
        async with agent.run_stream(task.question) as result:
            async for _ in result.stream_text():
                pass
    else:
        await agent.run(task.question)
