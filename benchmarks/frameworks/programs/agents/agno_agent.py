"""Agno: an agent with a tool."""

from agno.agent import Agent
from agno.models.openai.like import OpenAILike

from benchmarks.frameworks.program import KEY, MODEL, Task


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


def play(task: Task) -> None:
    model = OpenAILike(id=MODEL, base_url=task.base_url, api_key=KEY)
    agent = Agent(model=model, tools=[weather], instructions=task.system, telemetry=False)
    if task.stream:
        for _ in agent.run(task.question, stream=True):
            pass
    else:
        agent.run(task.question)
