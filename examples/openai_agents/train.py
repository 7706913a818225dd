"""Train a team of two with the OpenAI Agents SDK: a planner says what to calculate, a worker writes the expression.

    lightning-trainer serve --config examples/openai_agents/lightning.toml
    python examples/openai_agents/train.py

The two are ordinary agents of the SDK; the policy answers them because it claims their names.
"""

import sys
from pathlib import Path

from agents import Agent, ModelSettings, Runner, set_default_openai_api, set_tracing_disabled

sys.path.append(str(Path(__file__).parents[1] / "two_agents"))

from team import calculate  # pyright: ignore[reportMissingImports]
from team_training import EXPRESSIONS, MAX_TOKENS, PLANNER, PLANS, POLICY, WORKER, conversation, main  # pyright: ignore[reportMissingImports]

# Servers other than OpenAI's know chat completions; the SDK's own traces would go to OpenAI.
set_default_openai_api("chat_completions")
set_tracing_disabled(True)


async def answer(
    name: str, instructions: str, shown: tuple[tuple[str, str], ...], asked: str, temperature: float
) -> str:
    settings = ModelSettings(temperature=temperature, max_tokens=MAX_TOKENS)
    agent = Agent(name, instructions=instructions, model=POLICY, model_settings=settings)
    run = await Runner.run(agent, conversation(shown, asked))  # pyright: ignore[reportArgumentType]
    return str(run.final_output)


async def solve(question: str, temperature: float) -> int | None:
    plan = await answer("planner", PLANNER, PLANS, question, temperature)
    return calculate(await answer("worker", WORKER, EXPRESSIONS, plan, temperature))


if __name__ == "__main__":
    main(solve, "OpenAI-Agents")
