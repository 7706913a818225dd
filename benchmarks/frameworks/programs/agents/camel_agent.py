"""CAMEL: a chat agent with a tool."""

from typing import Any

from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.toolkits import FunctionTool
from camel.types import ModelPlatformType
from camel.utils import BaseTokenCounter

from benchmarks.frameworks.program import KEY, MODEL, Task


class Characters(BaseTokenCounter):
    """A token counter that downloads nothing; CAMEL's own would download a tokenizer."""

    def count_tokens_from_messages(self, messages: Any) -> int:
        return len(str(messages))

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: list[int]) -> str:
        return bytes(token_ids).decode()


def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city (str): the city.
    """
    return f"sunny in {city}"


def play(task: Task) -> None:
    model = ModelFactory.create(
        model_platform=ModelPlatformType.OPENAI_COMPATIBLE_MODEL,
        model_type=MODEL,
        url=task.base_url,
        api_key=KEY,
        token_counter=Characters(),
        model_config_dict={"stream": task.stream},
    )
    answer = ChatAgent(task.system, model=model, tools=[FunctionTool(weather)]).step(task.question)
    if task.stream:
        for _ in answer:
            pass
