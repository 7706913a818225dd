"""Agents of one framework inside of another's: each call is its innermost agent's."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from lightning_instrumentation import semconv
from pydantic import SecretStr

_numbers = count()
HELLO: Any = {"messages": [("user", "hello")]}


@pytest.fixture
def pydantic_agent(recording):
    import pydantic_ai  # takes a second, which collecting need not
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=recording.model.base_url, api_key="k")

    def make(name: str | None, tool: Callable[[], object] | None = None) -> Any:
        made = pydantic_ai.Agent(OpenAIChatModel("m", provider=provider), name=name)
        if tool is not None:

            @made.tool_plain
            async def calculator(expression: str) -> str:
                await tool()  # type: ignore[misc]
                return "5"

        return made

    return make


@pytest.fixture
def chat(model):
    # ChatOpenAI shares async clients by URL, and those belong to the event loop of one test of one file.
    url = f"{model.url}/together/{next(_numbers)}/v1"
    return ChatOpenAI(model="m", base_url=url, api_key=SecretStr("x"), max_retries=0)


def graph(node: str, work: Callable[[], Any], name: str | None = None) -> Any:
    async def run(state: MessagesState) -> dict:
        await work()
        return {}

    made = StateGraph(MessagesState)
    made.add_node(node, run)
    made.add_edge(START, node)
    return made.compile(name=name)


def names(recording: Any) -> list[str]:
    return [span.attributes[semconv.AGENT_NAME] for span in recording.spans("chat")]


async def test_a_pydantic_agent_in_a_node_speaks_for_itself(recording, chat, pydantic_agent) -> None:
    # Before: all of it was the node's, and no policy that claims the agent answered it.
    async def work() -> None:
        await chat.ainvoke("hi")
        await pydantic_agent("writer").run("hello")
        await chat.ainvoke("hi")

    await graph("router", work).ainvoke(HELLO)
    assert names(recording) == ["router", "writer", "router"]


async def test_a_graph_in_a_tool_of_such_an_agent_speaks_for_itself(recording, chat, pydantic_agent) -> None:
    solver = create_agent(chat, [], name="solver")

    async def work() -> None:
        await pydantic_agent("planner", lambda: solver.ainvoke(HELLO)).run("how much is 2+3")

    await graph("router", work).ainvoke(HELLO)
    await work()
    assert names(recording) == ["planner", "solver", "planner"] * 2


async def test_they_may_be_inside_of_each_other_in_turn(recording, chat, pydantic_agent) -> None:
    async def inner() -> None:
        await chat.ainvoke("hi")
        await pydantic_agent("writer").run("hello")

    team = graph("router", inner)
    await pydantic_agent("planner", lambda: team.ainvoke(HELLO)).run("how much is 2+3")
    assert names(recording) == ["planner", "router", "writer", "planner"]


async def test_a_name_that_nobody_chose_is_worth_less_than_one_around_it(recording, chat, pydantic_agent) -> None:
    agent = pydantic_agent(None)  # which Pydantic AI names after this variable
    await graph("router", lambda: agent.run("hello")).ainvoke(HELLO)
    nameless = create_agent(chat, [])
    await pydantic_agent("planner", lambda: nameless.ainvoke(HELLO)).run("how much is 2+3")
    assert names(recording) == ["router", "planner", "planner", "planner"]


async def test_what_a_graph_in_a_tool_says_first_of_all_is_its_own(recording, chat, pydantic_agent) -> None:
    from pydantic_ai.models.test import TestModel

    solver = create_agent(chat, [], name="solver")
    await pydantic_agent("planner", lambda: solver.ainvoke(HELLO)).run("how much is 2+3", model=TestModel())
    assert names(recording) == ["solver"]


async def test_a_run_that_has_its_id_from_the_caller_speaks_for_itself_each_time(
    recording, chat, pydantic_agent
) -> None:
    # Before: of the runs with one id, the second and all later ones were the node's.
    writer = pydantic_agent("writer")
    team = graph("router", lambda: writer.run("hello", run_id="task-1"))
    for _ in range(2):
        await team.ainvoke(HELLO)
    await asyncio.gather(*(team.ainvoke(HELLO) for _ in range(3)))
    assert names(recording) == ["writer"] * 5


async def test_a_graph_in_a_tool_speaks_for_itself_in_each_run_of_one_id(recording, chat, pydantic_agent) -> None:
    solver = create_agent(chat, [], name="solver")
    planner = pydantic_agent("planner", lambda: solver.ainvoke(HELLO))
    team = graph("router", lambda: planner.run("how much is 2+3", run_id="task-1"))
    for _ in range(2):
        await team.ainvoke(HELLO)
    assert names(recording) == ["planner", "solver", "planner"] * 2
