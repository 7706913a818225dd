"""Train a team of two with CrewAI: a planner says what to calculate, a worker writes the expression.

    lightning-trainer serve --config examples/crewai/lightning.toml
    .venv-crewai/bin/python examples/crewai/train.py

`make crewai` makes the environment. The text that a crew adds to a task is too much for a model of 135M parameters, so
the agents are kicked off without a crew, with examples as messages.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import logging
import os
import sys
from pathlib import Path

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")

from crewai import LLM, Agent
from crewai.events.event_listener import event_listener
from crewai.utilities.i18n import I18N_DEFAULT

sys.path.append(str(Path(__file__).parents[1] / "two_agents"))

from team import calculate  # pyright: ignore[reportMissingImports]
from team_training import (  # pyright: ignore[reportMissingImports]
    EXPRESSIONS,
    MAX_TOKENS,
    PLANNER,
    PLANS,
    POLICY,
    WORKER,
    conversation,
    main,
)

event_listener.formatter.verbose = False  # otherwise it draws two boxes for every call
logging.getLogger("crewai").setLevel(logging.ERROR)
FRAME = I18N_DEFAULT.slice("task_no_tools")
"""The text that CrewAI puts around a question. The examples have it as well: else they show another conversation."""


async def answer(
    role: str, instructions: str, examples: tuple[tuple[str, str], ...], asked: str, temperature: float
) -> str:
    llm = LLM(
        model=f"openai/{POLICY}",
        base_url=os.environ["OPENAI_BASE_URL"],
        temperature=temperature,
        max_tokens=MAX_TOKENS,
        timeout=300,
    )
    agent = Agent(role=role, goal=instructions, backstory="You are brief.", llm=llm, max_iter=1)
    framed = tuple((FRAME.format(input=question), shown) for question, shown in examples)
    return str(await agent.kickoff_async(conversation(framed, asked)))


async def solve(question: str, temperature: float) -> int | None:
    plan = await answer("planner", PLANNER, PLANS, question, temperature)
    return calculate(await answer("worker", WORKER, EXPRESSIONS, plan, temperature))


if __name__ == "__main__":
    main(solve, "CrewAI")
