"""AG2: an agent with a tool."""

from ag2 import Agent
from ag2.config import OpenAIConfig

from benchmarks.frameworks.program import KEY, MODEL, Task


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def play(task: Task) -> None:
    config = OpenAIConfig(model=MODEL, base_url=task.base_url, api_key=KEY, streaming=task.stream)
    await Agent("forecaster", task.system, config=config, tools=[weather]).ask(task.question)
