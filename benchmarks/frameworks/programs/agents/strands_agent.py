"""Strands: an agent with a tool; its models always stream."""

from strands import Agent, tool
from strands.models.openai import OpenAIModel

from benchmarks.frameworks.program import KEY, MODEL, Task


@tool
def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: the city.
    """
    return f"sunny in {city}"


def play(task: Task) -> None:
    model = OpenAIModel(client_args={"base_url": task.base_url, "api_key": KEY}, model_id=MODEL)
    Agent(model=model, tools=[weather], system_prompt=task.system, callback_handler=None)(task.question)
