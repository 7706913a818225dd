"""Haystack: its agent component."""

from typing import Annotated

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret

from benchmarks.frameworks.program import KEY, MODEL, Task


@tool
def weather(city: Annotated[str, "the city"]) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


def play(task: Task) -> None:
    model = OpenAIChatGenerator(model=MODEL, api_base_url=task.base_url, api_key=Secret.from_token(KEY))
    callback = (lambda chunk: None) if task.stream else None
    agent = Agent(chat_generator=model, tools=[weather], system_prompt=task.system, streaming_callback=callback)
    agent.run(messages=[ChatMessage.from_user(task.question)])
