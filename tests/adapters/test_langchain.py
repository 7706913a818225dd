"""LangChain and LangGraph with an ordinary ChatOpenAI: who speaks, what tools do, and nothing changes."""

import asyncio
import json
import threading
from itertools import count
from typing import Annotated, Any

import lightning_instrumentation as lt
import openai
import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, ToolException, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from lightning_adapters import langchain
from lightning_adapters.langchain import agent_of
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_token_ids
from lightning_instrumentation.wire.call import silence
from pydantic import SecretStr

_numbers = count()


def asking(text: str) -> Any:
    return {"messages": [("user", text)]}


QUESTION = asking("how much is 2+3")


def streamed(agent: Any) -> list:
    return [message for message, _ in agent.stream(QUESTION, stream_mode="messages")]


@pytest.fixture
def chat(model):
    # ChatOpenAI shares async clients by URL, and those belong to the event loop of one test.
    url = f"{model.url}/{next(_numbers)}/v1"
    return ChatOpenAI(model="m", base_url=url, api_key=SecretStr("x"), max_retries=0)


@tool
def calculator(expression: str) -> str:
    """Compute."""
    return str(eval(expression, {}))


def agents_of(spans) -> list:
    return [(span.attributes.get(semconv.AGENT_NAME), span.attributes.get(semconv.AGENT_SOURCE)) for span in spans]


def check_two_calls_and_a_tool(recording, name: str, source: str) -> None:
    chats, tools = recording.spans("chat"), recording.spans("execute_tool")
    assert len(chats) == 2
    assert agents_of([*chats, *tools]) == [(name, source)] * 3
    (span,) = tools
    assert span.name == "execute_tool calculator"
    assert span.attributes[semconv.TOOL_NAME] == "calculator"
    assert span.attributes[semconv.TOOL_CALL_ID] == "call_1"
    assert json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"expression": "2+3"}
    assert span.attributes[semconv.TOOL_CALL_RESULT] == "5"
    assert all(unpack_token_ids(chat.attributes[semconv.response_token_ids(0)]) for chat in chats)


def test_a_named_agent_with_a_tool(recording, chat):
    agent = create_agent(chat, [calculator], name="solver")
    with lt.rollout("t") as rollout:
        answer = agent.invoke(QUESTION)
    assert answer["messages"][-1].content == "answer0 to 5 "
    check_two_calls_and_a_tool(recording, "solver", "langchain")
    root = recording.span("rollout")
    for span in [*recording.spans("chat"), *recording.spans("execute_tool")]:
        assert span.parent_span_id == root.span_id
        assert span.attributes[semconv.ATTEMPT_ID] == rollout.attempt_id


async def test_a_named_agent_async(recording, chat):
    agent = create_agent(chat, [calculator], name="solver")
    async with lt.rollout("t"):
        await agent.ainvoke(QUESTION)
    check_two_calls_and_a_tool(recording, "solver", "langchain")


def test_a_named_agent_streaming_its_tokens(recording, chat):
    agent = create_agent(chat, [calculator], name="solver")
    with lt.rollout("t"):
        pieces = [message.content for message in streamed(agent)]
    assert "".join(pieces).endswith("answer0 to 5 ")
    check_two_calls_and_a_tool(recording, "solver", "langchain")
    assert [span.attributes[semconv.STREAM_COMPLETE] for span in recording.spans("chat")] == [True, True]


def test_a_decorator_names_an_agent_that_has_no_name(recording, chat):
    agent = create_agent(chat, [calculator])

    @lt.agent("mine")
    def solve():
        return agent.invoke(QUESTION)

    solve()
    check_two_calls_and_a_tool(recording, "mine", "decorator")
    outer = recording.span("invoke_agent")
    assert {span.parent_span_id for span in recording.spans("chat")} == {outer.span_id}


def test_a_named_agent_inside_a_decorated_function_is_the_one_that_speaks(recording, chat):
    agent = create_agent(chat, [calculator], name="solver")

    @lt.agent("outer")
    def solve():
        return agent.invoke(QUESTION)

    solve()
    check_two_calls_and_a_tool(recording, "solver", "langchain")


def test_without_any_name_the_node_is_better_than_nothing(recording, chat):
    create_agent(chat, [calculator]).invoke(QUESTION)
    assert agents_of(recording.spans("chat")) == [("model", "langgraph")] * 2


def test_a_team_each_call_under_its_own_name(recording, chat):
    """Node, async node, named agent, unnamed agent as a node, a bare thread, the raw client, a decorator in a node."""
    raw = openai.OpenAI(base_url=recording.model.base_url, api_key="x")

    def ask_raw(text: str) -> None:
        raw.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])

    def planner(state):
        return {"messages": [chat.invoke("planner")]}

    async def critic(state):
        return {"messages": [await chat.ainvoke("critic")]}

    def rawnode(state):
        ask_raw("rawnode")
        return {"messages": []}

    def threaded(state):
        thread = threading.Thread(target=ask_raw, args=("threaded",))
        thread.start()
        thread.join()
        return {"messages": []}

    @lt.agent("inner")
    def inner(state):
        ask_raw("inner")
        chat.invoke("inner")
        researcher.invoke(asking("researcher"))
        ask_raw("inner")

    def decorated(state):
        inner(state)
        ask_raw("decorated")
        return {"messages": []}

    researcher = create_agent(chat, [], name="researcher")
    unnamed = create_agent(chat, [])
    graph = StateGraph(MessagesState)
    nodes = {
        "planner": planner,
        "critic": critic,
        "library": researcher,
        "writer": unnamed,
        "rawnode": rawnode,
        "threaded": threaded,
        "decorated": decorated,
    }
    for name, node in nodes.items():
        graph.add_node(name, node)  # type: ignore[call-overload]
    for before, after in zip([START, *nodes], [*nodes, END], strict=True):
        graph.add_edge(before, after)

    @lt.agent("around it all")
    def team():
        return asyncio.run(graph.compile().ainvoke(asking("go")))

    team()
    spoken = [span.attributes[semconv.AGENT_NAME] for span in recording.spans("chat")]
    assert spoken == [
        "planner",
        "critic",
        "researcher",
        "writer",
        "rawnode",
        "threaded",
        "inner",
        "inner",
        "researcher",
        "inner",
        "decorated",
    ]


def test_what_a_tool_does_is_the_tools_child_also_when_it_is_async(recording, chat):
    helper = create_agent(chat, [], name="helper")

    @tool
    def ask_helper(question: str) -> str:
        """Ask."""
        return helper.invoke(asking(question))["messages"][-1].content

    @tool
    async def aask_helper(question: str) -> str:
        """Ask."""
        return (await helper.ainvoke(asking(question)))["messages"][-1].content

    with lt.rollout("sync"):
        create_agent(chat, [ask_helper], name="boss").invoke(QUESTION)
    with lt.rollout("async"):
        asyncio.run(create_agent(chat, [aask_helper], name="boss").ainvoke(QUESTION))
    tools = recording.spans("execute_tool")
    helped = [span for span in recording.spans("chat") if span.attributes[semconv.AGENT_NAME] == "helper"]
    assert [span.parent_span_id for span in helped] == [span.span_id for span in tools]
    assert [span.attributes[semconv.AGENT_NAME] for span in tools] == ["boss", "boss"]


def test_a_tool_that_raises_raises_as_before_and_its_span_says_so(recording):
    @tool
    def breaks(x: int) -> str:
        """Break."""
        raise RuntimeError(f"cannot {x}")

    with pytest.raises(RuntimeError, match="cannot 3"):
        breaks.invoke({"x": 3})
    assert recording.span("execute_tool").error == "cannot 3"


def test_a_tool_that_tells_the_model_of_its_failure_has_failed(recording):
    @tool
    def tells(x: int) -> str:
        """Tell."""
        raise ToolException("no such file")

    tells.handle_tool_error = True
    answer = tells.invoke({"type": "tool_call", "id": "c1", "name": "tells", "args": {"x": 1}})
    assert answer.status == "error"
    span = recording.span("execute_tool")
    assert span.error == "no such file"
    assert span.attributes[semconv.TOOL_CALL_RESULT] == "no such file"


@pytest.mark.parametrize("status", ["success", "error"])
def test_a_tool_that_commands_the_graph_is_recorded_with_what_the_model_gets(recording, status):
    @tool
    def hand_over(to: str, call_id: Annotated[str, InjectedToolCallId]) -> Command:
        """Hand over."""
        other = ToolMessage("of another call", tool_call_id="c2")
        told = ToolMessage(f"over to {to}", tool_call_id=call_id, status=status)
        return Command(goto=to, update={"messages": [other, told]})

    hand_over.invoke({"type": "tool_call", "id": "c1", "name": "hand_over", "args": {"to": "bob"}})
    span = recording.span("execute_tool")
    assert span.attributes[semconv.TOOL_CALL_RESULT] == "over to bob"
    assert span.error == ("over to bob" if status == "error" else None)


def test_what_the_framework_injects_is_not_recorded_as_the_models_arguments(recording):
    @tool
    def reads(x: int, secret: Annotated[str, InjectedToolArg]) -> str:
        """Read."""
        return secret[:1]

    assert reads.invoke({"x": 1, "secret": "password"}) == "p"
    span = recording.span("execute_tool")
    assert json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"x": 1}


def test_a_model_run_that_has_ended_names_nobody(recording, chat):
    chat.invoke("hi", config={"metadata": {"lc_agent_name": "configured"}})
    chat.invoke("hi")
    openai.OpenAI(base_url=recording.model.base_url, api_key="x").chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}]
    )
    assert [name for name, _ in agents_of(recording.spans("chat"))] == ["configured", None, None]


async def test_runs_are_forgotten_at_their_end_and_are_bounded_without_one(recording, chat, monkeypatch):
    def fails(value: int) -> float:
        return 1 / value

    runs = langchain._runs
    runs.clear()
    agent = create_agent(chat, [calculator], name="solver")
    agent.invoke(QUESTION)
    await agent.ainvoke(QUESTION)
    with pytest.raises(ZeroDivisionError):
        RunnableLambda(fails).invoke(0)
    assert not runs
    monkeypatch.setattr(langchain, "_MOST_RUNS", 3)
    agent.invoke(QUESTION)
    assert not runs
    streams = [agent.stream(QUESTION) for _ in range(9)]
    for stream in streams:
        next(stream)
    assert 0 < len(runs) <= 3
    assert {name for name, _ in agents_of(recording.spans("chat"))} == {"solver"}


@pytest.mark.parametrize(("name", "expected"), [("writer", "writer"), (None, "boss")])
async def test_a_graph_that_begins_after_its_tool_has_ended_keeps_its_own_name(recording, chat, name, expected):
    async def answer(state: MessagesState) -> dict:
        return {"messages": [await chat.ainvoke(state["messages"])]}

    building = StateGraph(MessagesState)
    building.add_node("agent", answer)
    building.add_edge(START, "agent")
    building.add_edge("agent", END)
    graph = building.compile(name=name)
    answered, tasks = asyncio.Event(), []

    async def later() -> None:
        await answered.wait()
        await graph.ainvoke(asking("hi"))

    @tool("calculator")
    async def delegate(expression: str) -> str:
        """Compute."""
        tasks.append(asyncio.create_task(later()))
        return "5"

    await create_agent(chat, [delegate], name="boss").ainvoke(QUESTION)
    answered.set()
    await asyncio.gather(*tasks)
    assert [said for said, _ in agents_of(recording.spans("chat"))] == ["boss", "boss", expected]


@pytest.mark.long
def test_forty_rollouts_of_one_agent_in_threads_and_tasks_stay_apart(recording, chat):
    agent = create_agent(chat, [calculator], name="solver")

    def attempt(number: int) -> None:
        with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            agent.invoke(asking(f"rollout {number}"))

    async def async_attempt(number: int) -> None:
        async with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            await agent.ainvoke(asking(f"rollout {number}"))

    async def all_async() -> None:
        await asyncio.gather(*(async_attempt(number) for number in range(20, 40)))

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    asyncio.run(all_async())
    for thread in threads:
        thread.join()
    chats = recording.spans("chat")
    assert len(chats) == 80
    for span in chats:
        asked = json.loads(span.attributes[semconv.INPUT_MESSAGES])[0]["parts"][0]["content"].split()[1]
        assert span.attributes[semconv.ROLLOUT_ID] == f"r{asked}"
    assert len(recording.spans("execute_tool")) == 40
    assert {name for name, _ in agents_of(chats)} == {"solver"}


def test_answers_and_messages_are_the_same_with_and_without_us(recording, chat):
    def everything() -> list:
        agent = create_agent(chat, [calculator], name="solver")
        messages = agent.invoke(QUESTION)["messages"]
        pieces = streamed(agent)
        plain = chat.invoke("hello")
        ours = ("id", "run_id")
        return [
            {key: value for key, value in message.model_dump().items() if key not in ours}
            for message in [*messages, *pieces, plain, *chat.stream("hello")]
        ]

    watched = everything()
    with silence():
        unwatched = everything()
    assert watched == unwatched


@pytest.mark.parametrize(
    ("metadata", "name", "explicit"),
    [
        ({}, None, None),
        ({"langgraph_node": "model", "lc_agent_name": "a", "langgraph_checkpoint_ns": "model:1"}, "a", True),
        ({"langgraph_node": "n", "lc_agent_name": "a", "langgraph_checkpoint_ns": "tools:1|n:2"}, "n", True),
        ({"langgraph_node": "model", "langgraph_checkpoint_ns": "writer:1|model:2"}, "writer", True),
        ({"langgraph_node": "model", "langgraph_checkpoint_ns": "writer:1|1|model:2"}, "writer", True),
        ({"langgraph_node": "model", "langgraph_checkpoint_ns": "tools:1|1|model:2"}, "model", False),
        ({"langgraph_node": "X.before_model", "langgraph_checkpoint_ns": "X.before_model:2"}, "X.before_model", False),
        ({"langgraph_node": "model"}, "model", False),
        ({"lc_agent_name": "a"}, "a", True),
    ],
)  # fmt: skip
def test_who_speaks_by_metadata(metadata, name, explicit):
    agent = agent_of(metadata)
    assert (agent.name if agent else None) == name
    assert (agent.explicit if agent else None) == explicit
