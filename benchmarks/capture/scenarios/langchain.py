"""LangChain's ``create_agent`` with a tool; the name is the agent's own, no decorator."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from benchmarks.capture.scenarios import KEY, MODEL, Scenario, Task


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


def _agent(task: Task) -> Any:
    model = ChatOpenAI(model=MODEL, base_url=task.base_url, api_key=SecretStr(KEY), max_retries=0)
    return create_agent(model, tools=[weather], system_prompt=task.instructions("forecaster"), name="forecaster")


def _asking(task: Task) -> Any:
    return {"messages": [("user", task.question)]}


def sync(task: Task) -> None:
    _agent(task).invoke(_asking(task))


async def asynchronous(task: Task) -> None:
    await _agent(task).ainvoke(_asking(task))


def stream(task: Task) -> None:
    for _ in _agent(task).stream(_asking(task), stream_mode="messages"):
        pass


SCENARIO = Scenario(sync, asynchronous, stream)
