"""Train a team of two with LangGraph: a planner says what to calculate, a worker writes the expression.

    lightning-trainer serve --config examples/langgraph/lightning.toml
    python examples/langgraph/train.py

The nodes are the agents: nothing here except `main` and the model's name knows of lightning.
"""

import sys
from functools import cache
from pathlib import Path
from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

sys.path.append(str(Path(__file__).parents[1] / "two_agents"))

from team import calculate  # pyright: ignore[reportMissingImports]
from team_training import EXPRESSIONS, MAX_TOKENS, PLANNER, PLANS, POLICY, WORKER, conversation, main  # pyright: ignore[reportMissingImports]


class Team(TypedDict):
    question: str
    plan: str
    expression: str


@cache
def graph(temperature: float):
    chat = ChatOpenAI(model=POLICY, temperature=temperature, max_completion_tokens=MAX_TOKENS, timeout=300)

    async def planner(state: Team) -> dict:
        asked = [{"role": "system", "content": PLANNER}, *conversation(PLANS, state["question"])]
        return {"plan": (await chat.ainvoke(asked)).text}

    async def worker(state: Team) -> dict:
        asked = [{"role": "system", "content": WORKER}, *conversation(EXPRESSIONS, state["plan"])]
        return {"expression": (await chat.ainvoke(asked)).text}

    built = StateGraph(Team)
    built.add_node("planner", planner)
    built.add_node("worker", worker)
    built.add_edge(START, "planner")
    built.add_edge("planner", "worker")
    built.add_edge("worker", END)
    return built.compile()


async def solve(question: str, temperature: float) -> int | None:
    state = await graph(temperature).ainvoke({"question": question, "plan": "", "expression": ""})
    return calculate(state["expression"])


if __name__ == "__main__":
    main(solve, "LangGraph")
