"""Two AutoGen agents write together: ordinary AgentChat, and two lines of lightning.

export OPENAI_BASE_URL=http://127.0.0.1:8321/v1 OPENAI_API_KEY=unused OPENAI_MODEL=example
python examples/autogen/agent.py "Describe a lighthouse in one sentence."
"""

import asyncio
import os
import sys

import lightning_instrumentation as lt
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily
from autogen_ext.models.openai import OpenAIChatCompletionClient

lt.init()


async def count_words(text: str) -> str:
    """Count the words of a text."""
    return str(len(text.split()))


async def main(task: str) -> None:
    client = OpenAIChatCompletionClient(
        model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": ModelFamily.UNKNOWN,
        },
    )
    writer = AssistantAgent("writer", client, system_message="Write what is asked for; improve it when criticised.")
    critic = AssistantAgent(
        "critic",
        client,
        system_message="Count the words of the last text and say how to improve it.",
        tools=[count_words],
        reflect_on_tool_use=True,
    )
    team = RoundRobinGroupChat([writer, critic], termination_condition=MaxMessageTermination(4))
    async for message in team.run_stream(task=task):
        if not isinstance(message, TaskResult) and message.source != "user":
            print(f"{message.source}: {message.to_text()}")
    await client.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('usage: python examples/autogen/agent.py "TASK"')
    asyncio.run(main(sys.argv[1]))
