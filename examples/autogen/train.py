"""Train a team of two with AutoGen AgentChat: a planner says what to calculate, a worker writes the expression.

    lightning-trainer serve --config examples/autogen/lightning.toml
    python examples/autogen/train.py

Agents keep their conversation, so every attempt creates its own agents; the client is shared.
"""

import sys
from functools import cache
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, LLMMessage, ModelFamily, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

sys.path.append(str(Path(__file__).parents[1] / "two_agents"))

from team import calculate  # pyright: ignore[reportMissingImports]
from team_training import EXPRESSIONS, MAX_TOKENS, PLANNER, PLANS, POLICY, WORKER, main  # pyright: ignore[reportMissingImports]


@cache
def client(temperature: float) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model=POLICY,
        temperature=temperature,
        max_tokens=MAX_TOKENS,
        timeout=300,
        model_info={
            "vision": False,
            "function_calling": False,
            "json_output": False,
            "structured_output": False,
            "family": ModelFamily.UNKNOWN,
        },
    )


def agent(name: str, instructions: str, shown: tuple[tuple[str, str], ...], temperature: float) -> AssistantAgent:
    said: list[LLMMessage] = []
    for question, answer in shown:
        said += [UserMessage(content=question, source="user"), AssistantMessage(content=answer, source=name)]
    context = UnboundedChatCompletionContext(initial_messages=said)
    return AssistantAgent(name, client(temperature), system_message=instructions, model_context=context)


async def answer(of: AssistantAgent, asked: str) -> str:
    return (await of.run(task=asked)).messages[-1].to_text()  # pyright: ignore[reportAttributeAccessIssue]


async def solve(question: str, temperature: float) -> int | None:
    plan = await answer(agent("planner", PLANNER, PLANS, temperature), question)
    return calculate(await answer(agent("worker", WORKER, EXPRESSIONS, temperature), plan))


if __name__ == "__main__":
    main(solve, "AutoGen")
