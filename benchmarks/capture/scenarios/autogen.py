"""AutoGen AgentChat: an assistant with a tool, and a round-robin team of two; asynchronous only."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from benchmarks.capture.scenarios import KEY, MODEL, Scenario, Task

_ABILITIES = ModelInfo(
    vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False
)


async def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


async def _play(task: Task, *, stream: bool) -> None:
    client = OpenAIChatCompletionClient(model=MODEL, base_url=task.base_url, api_key=KEY, model_info=_ABILITIES)
    forecaster = AssistantAgent(
        "forecaster",
        client,
        tools=[weather],
        system_message=task.instructions("forecaster"),
        reflect_on_tool_use=True,
        model_client_stream=stream,
    )
    await forecaster.run(task=task.question)
    writer, critic = (
        AssistantAgent(name, client, system_message=task.instructions(name), model_client_stream=stream)
        for name in ("writer", "critic")
    )
    team = RoundRobinGroupChat([writer, critic], termination_condition=MaxMessageTermination(3))
    await team.run(task=task.question)
    await client.close()


async def asynchronous(task: Task) -> None:
    await _play(task, stream=False)


async def streamed(task: Task) -> None:
    await _play(task, stream=True)


SCENARIO = Scenario(None, asynchronous, streamed)
