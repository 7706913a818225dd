"""LangGraph in depth: every call is captured, under the name of whoever made it and in its rollout, and answers stay.

Each scenario asks "as NAME in TAG", NAME being who should be recognized; it runs once watched and once unwatched.
"""

import asyncio
import json
import operator
import threading
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import Annotated, Any, TypedDict

import lightning_instrumentation as lt
import openai
import pytest
from langchain.agents import create_agent
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, Send, interrupt
from langgraph.warnings import LangGraphDeprecatedSinceV10
from lightning_instrumentation import semconv
from lightning_instrumentation.wire.call import silence
from pydantic import SecretStr

NOBODY = "nobody"
_numbers = count()


class State(TypedDict):
    said: Annotated[list, operator.add]
    number: Annotated[int, lambda old, new: new]


EMPTY: State = {"said": [], "number": 0}


@dataclass(frozen=True)
class World:
    """What a scenario works with."""

    chat: ChatOpenAI
    raw: openai.OpenAI
    raw_async: openai.AsyncOpenAI
    tag: str

    def text(self, name: str) -> str:
        return f"as {name} in {self.tag}"

    def ask(self, name: str) -> str:
        return str(self.chat.invoke(self.text(name)).content)

    async def aask(self, name: str) -> str:
        return str((await self.chat.ainvoke(self.text(name))).content)

    def ask_raw(self, name: str) -> str:
        messages: Any = [{"role": "user", "content": self.text(name)}]
        return self.raw.chat.completions.create(model="m", messages=messages).choices[0].message.content or ""

    async def aask_raw(self, name: str) -> str:
        messages: Any = [{"role": "user", "content": self.text(name)}]
        answer = await self.raw_async.chat.completions.create(model="m", messages=messages)
        return answer.choices[0].message.content or ""

    def node(self, *names: str, then: Callable[[State], Any] | None = None) -> Any:
        """A node that asks under each name; ``then`` runs between the first and the others."""

        def work(state: State) -> dict:
            said = [self.ask(names[0])]
            if then is not None:
                then(state)
            return {"said": said + [self.ask(name) for name in names[1:]]}

        return work

    def anode(self, name: str) -> Any:
        async def work(state: State) -> dict:
            return {"said": [await self.aask(name)]}

        return work

    def agent(self, name: str | None, *tools: Any) -> Any:
        return create_agent(self.chat, list(tools), name=name)

    def question(self, name: str) -> Any:
        return {"messages": [("user", self.text(name))]}


def chain(graph_name: str | None = None, /, **nodes: Any) -> Any:
    """A graph of nodes, one after the other."""
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for before, after in zip([START, *nodes], [*nodes, END], strict=True):
        graph.add_edge(before, after)
    return graph.compile(name=graph_name)


def fan(**nodes: Any) -> Any:
    """A graph of nodes side by side, and one after all of them."""
    graph = StateGraph(State)
    graph.add_node("join", lambda state: {"said": ["joined"]})
    graph.add_edge("join", END)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, "join")
    return graph.compile()


# -- scenarios -------------------------------------------------------------------------------------------------------


def subgraph_as_a_node(world: World) -> Any:
    mine = chain(digger=world.node("digger"), sorter=world.node("sorter"))
    return chain(boss=world.node("boss"), mine=mine, clerk=world.node("clerk")).invoke(EMPTY)


def subgraph_called_in_a_node(world: World) -> Any:
    mine = chain(digger=world.node("digger"))
    return chain(boss=world.node("boss", "boss", then=lambda state: mine.invoke(EMPTY))).invoke(EMPTY)


async def async_subgraphs(world: World) -> Any:
    inner = chain(digger=world.anode("digger"))
    mine = chain(before=world.anode("before"), inner=inner)

    async def boss(state: State) -> dict:
        first = await world.aask("boss")
        await mine.ainvoke(EMPTY)
        return {"said": [first, await world.aask("boss")]}

    return await chain(boss=boss, mine=mine).ainvoke(EMPTY)


def parallel_branches(world: World) -> Any:
    return fan(**{name: world.node(name, name) for name in ("left", "middle", "right")}).invoke(EMPTY)


async def async_parallel_branches(world: World) -> Any:
    return await fan(**{name: world.anode(name) for name in ("left", "middle", "right")}).ainvoke(EMPTY)


def _mapped(world: World, worker: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("planner", world.node("planner"))
    graph.add_node("worker", worker)
    graph.add_edge(START, "planner")
    graph.add_conditional_edges(
        "planner", lambda state: [Send("worker", {"number": number}) for number in range(5)], ["worker"]
    )
    graph.add_edge("worker", END)
    return graph.compile()


def sent_to_workers(world: World) -> Any:
    return _mapped(world, world.node("worker")).invoke(EMPTY)


async def async_sent_to_subgraphs(world: World) -> Any:
    return await _mapped(world, chain(digger=world.anode("digger"))).ainvoke(EMPTY)


def raw_client_in_a_node(world: World) -> Any:
    return fan(
        left=lambda state: {"said": [world.ask_raw("left")]}, right=lambda state: {"said": [world.ask_raw("right")]}
    ).invoke(EMPTY)


async def async_raw_client_in_a_node(world: World) -> Any:
    async def left(state: State) -> dict:
        return {"said": [await world.aask_raw("left"), await world.aask("left")]}

    async def right(state: State) -> dict:
        return {"said": [await world.aask_raw("right")]}

    return await fan(left=left, right=right).ainvoke(EMPTY)


def agents_as_tools(world: World) -> Any:
    helper = world.agent("helper")

    @tool
    def ask_helper(question: str) -> str:
        """Ask the helper."""
        return helper.invoke(world.question("helper"))["messages"][-1].content + world.ask_raw("boss")

    return _messages(world.agent("boss", ask_helper).invoke(world.question("boss")))


async def async_agents_as_tools(world: World) -> Any:
    deepest = world.agent("deepest")

    @tool
    async def ask_deepest(question: str) -> str:
        """Ask the deepest."""
        return (await deepest.ainvoke(world.question("deepest")))["messages"][-1].content

    helper = world.agent("helper", ask_deepest)

    @tool
    async def ask_helper(question: str) -> str:
        """Ask the helper."""
        answers = await asyncio.gather(*(helper.ainvoke(world.question("helper")) for _ in range(2)))
        return answers[0]["messages"][-1].content + await world.aask_raw("boss")

    return _messages(await world.agent("boss", ask_helper).ainvoke(world.question("boss")))


def _asking(agent: Any, world: World, name: str) -> Any:
    return lambda state: {"said": [agent.invoke(world.question(name))["messages"][-1].content]}


def nested_agents(world: World) -> Any:
    """A named agent, and one without a name, as nodes of a graph that is itself a node."""

    named, unnamed = world.agent("named"), world.agent(None)
    stage = chain(first=_asking(named, world, "named"), second=_asking(unnamed, world, "second"))
    return chain(stage=stage, last=world.node("last")).invoke(EMPTY)


def streamed_in_every_mode(world: World) -> Any:
    graph = chain(first=world.node("first"), mine=chain(digger=world.node("digger")))
    return [
        [_plain(piece) for piece in graph.stream(EMPTY, stream_mode=mode, subgraphs=subgraphs)]
        for mode in ("messages", "updates", "values", ["messages", "updates"])
        for subgraphs in (False, True)
    ]


def streamed_while_the_consumer_asks_too(world: World) -> Any:
    graph = chain(first=world.node("first", "first"), second=world.node("second"))
    said = []
    for piece, _ in graph.stream(EMPTY, stream_mode="messages"):
        said += [_plain(piece), world.ask_raw(NOBODY)]
    return [*said, world.ask(NOBODY)]


async def async_streamed_while_the_consumer_asks_too(world: World) -> Any:
    async def streaming(state: State) -> dict:
        return {"said": ["".join([str(chunk.content) async for chunk in world.chat.astream(world.text("first"))])]}

    said = []
    async for piece, _ in chain(first=streaming, second=world.anode("second")).astream(EMPTY, stream_mode="messages"):
        said += [_plain(piece), await world.aask_raw(NOBODY)]
    return [*said, await world.aask(NOBODY)]


def graph_called_between_the_chunks_of_a_stream(world: World) -> Any:
    mine = chain(digger=lambda state: {"said": [world.ask_raw("digger"), world.ask("digger")]})

    def first(state: State) -> dict:
        said = []
        for chunk in world.chat.stream(world.text("first")):
            said.append(str(chunk.content))
            if len(said) == 1:
                said += mine.invoke(EMPTY)["said"] + [world.ask_raw("first")]
        return {"said": said}

    return chain(first=first).invoke(EMPTY)


async def async_graph_called_between_the_chunks_of_a_stream(world: World) -> Any:
    async def digger(state: State) -> dict:
        return {"said": [await world.aask_raw("digger"), await world.aask("digger")]}

    mine = chain(digger=digger)

    async def first(state: State) -> dict:
        said = []
        async for chunk in world.chat.astream(world.text("first")):
            said.append(str(chunk.content))
            if len(said) == 1:
                said += (await mine.ainvoke(EMPTY))["said"] + [await world.aask_raw("first")]
        return {"said": said}

    return await chain(first=first).ainvoke(EMPTY)


async def streams_left_in_the_middle(world: World) -> Any:
    graph = chain(first=world.anode("first"), second=world.anode("second"))
    stream = graph.astream(EMPTY, stream_mode="updates")
    first = await anext(stream)
    await stream.aclose()
    return [first, await world.aask(NOBODY)]


async def events(world: World) -> Any:
    seen = [event["event"] async for event in chain(first=world.anode("first")).astream_events(EMPTY, version="v2")]
    return sorted(set(seen))


def batches(world: World) -> Any:
    graph = chain(first=world.node("first"), second=world.node("second"))
    agent = world.agent("solver")
    return graph.batch([EMPTY] * 3), [_messages(one) for one in agent.batch([world.question("solver")] * 3)]


async def async_batches(world: World) -> Any:
    graph = fan(left=world.anode("left"), right=world.anode("right"))
    return await graph.abatch([EMPTY] * 3), [one async for _, one in graph.abatch_as_completed([EMPTY] * 3)]


def threads_and_executors(world: World) -> Any:
    def node(name: str) -> Any:
        def work(state: State) -> dict:
            said: list[str] = []
            thread = threading.Thread(target=lambda: said.append(world.ask_raw(name)))
            thread.start()
            thread.join()
            with ThreadPoolExecutor(3) as pool:
                said += pool.map(world.ask, [name] * 3)
                said.append(pool.submit(world.ask_raw, name).result())
            return {"said": said}

        return work

    return fan(left=node("left"), right=node("right")).invoke(EMPTY)


async def tasks_and_threads(world: World) -> Any:
    def node(name: str) -> Any:
        async def work(state: State) -> dict:
            loop = asyncio.get_running_loop()
            background = asyncio.create_task(world.aask_raw(name))
            said = await asyncio.gather(
                world.aask(name),
                world.aask_raw(name),
                asyncio.to_thread(world.ask, name),
                asyncio.to_thread(world.ask_raw, name),
                loop.run_in_executor(None, world.ask_raw, name),
                loop.run_in_executor(None, world.ask, name),
            )
            return {"said": [*said, await background]}

        return work

    return await fan(left=node("left"), right=node("right")).ainvoke(EMPTY)


def chains_in_a_node(world: World) -> Any:
    prompt = ChatPromptTemplate.from_messages([("user", "as {name} in " + world.tag)])
    both = RunnableParallel(a=prompt | world.chat, b=RunnableLambda(lambda value: world.ask_raw(value["name"])))

    def node(name: str) -> Any:
        def work(state: State) -> dict:
            answer = both.invoke({"name": name})
            return {"said": [answer["a"].content, answer["b"]]}

        return work

    return fan(left=node("left"), right=node("right")).invoke(EMPTY)


def functional_api(world: World) -> Any:
    @task
    def translate(text: str) -> str:
        return world.ask("translate")

    @entrypoint()
    def flow(text: str) -> list[str]:
        pending = [translate(text) for _ in range(3)]
        return [world.ask_raw("flow"), *(one.result() for one in pending)]

    return flow.invoke("x")


def _react(world: World, name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangGraphDeprecatedSinceV10)
        return create_react_agent(world.chat, [], name=name)


def graphs_called_in_turn(world: World) -> Any:
    unnamed, digging = world.agent(None), chain(agent=world.node("boss"))

    def boss(state: State) -> dict:
        for _ in range(3):
            unnamed.invoke(world.question("boss"))
            digging.invoke(EMPTY)
        with lt.agent("mine"):
            return {"said": [unnamed.invoke(world.question("mine"))["messages"][-1].content for _ in range(2)]}

    return chain(boss=boss).invoke(EMPTY)


def below_a_named_agent(world: World) -> Any:
    """Everything here inherits the metadata of ``boss``, which names it."""
    helper, unnamed = _react(world, "helper"), world.agent(None)
    digging = chain(digger=_asking(unnamed, world, "digger"))
    research = chain("research", agent=world.node("research"))
    sorting = StateGraph(MessagesState).add_node("sorter", unnamed).add_edge(START, "sorter").compile()

    @tool
    def delegate(question: str) -> str:
        """Delegate."""
        helper.invoke(world.question("helper"))
        digging.invoke(EMPTY)
        research.invoke(EMPTY)
        sorting.invoke(world.question("sorter"))
        unnamed.invoke(world.question("boss"))
        with lt.agent("mine"):
            unnamed.invoke(world.question("mine"))
            chain(agent=world.node("mine")).invoke(EMPTY)
            helper.invoke(world.question("helper"))
            world.agent("named").invoke(world.question("named"), {"run_name": "of a ticket"})
            unnamed.invoke(world.question("mine"), {"run_name": "of a ticket"})
        return world.ask_raw("boss")

    return _messages(world.agent("boss", delegate).invoke(world.question("boss")))


async def async_named_graphs_side_by_side(world: World) -> Any:
    agents = {name: _react(world, name) for name in ("left", "right")}
    research = chain("research", agent=world.anode("research"))

    async def ask(name: str) -> Any:
        return _messages(await agents[name].ainvoke(world.question(name), {"run_name": "of a ticket"}))

    with lt.agent("around"):
        return await asyncio.gather(ask("left"), ask("right"), ask("left"), research.ainvoke(EMPTY))


SCENARIOS: dict[Callable[[World], Any], dict[str, int]] = {
    subgraph_as_a_node: {"boss": 1, "digger": 1, "sorter": 1, "clerk": 1},
    subgraph_called_in_a_node: {"boss": 2, "digger": 1},
    async_subgraphs: {"boss": 2, "before": 2, "digger": 2},
    parallel_branches: {"left": 2, "middle": 2, "right": 2},
    async_parallel_branches: {"left": 1, "middle": 1, "right": 1},
    sent_to_workers: {"planner": 1, "worker": 5},
    async_sent_to_subgraphs: {"planner": 1, "digger": 5},
    raw_client_in_a_node: {"left": 1, "right": 1},
    async_raw_client_in_a_node: {"left": 2, "right": 1},
    agents_as_tools: {"boss": 3, "helper": 1},
    async_agents_as_tools: {"boss": 3, "helper": 4, "deepest": 2},
    nested_agents: {"named": 1, "second": 1, "last": 1},
    streamed_in_every_mode: {"first": 8, "digger": 8},
    events: {"first": 1},
    graph_called_between_the_chunks_of_a_stream: {"first": 2, "digger": 2},
    async_graph_called_between_the_chunks_of_a_stream: {"first": 2, "digger": 2},
    batches: {"first": 3, "second": 3, "solver": 3},
    async_batches: {"left": 6, "right": 6},
    threads_and_executors: {"left": 5, "right": 5},
    tasks_and_threads: {"left": 7, "right": 7},
    chains_in_a_node: {"left": 2, "right": 2},
    functional_api: {"translate": 3, "flow": 1},
    graphs_called_in_turn: {"boss": 6, "mine": 2},
    below_a_named_agent: {"boss": 4, "helper": 2, "digger": 1, "research": 1, "sorter": 1, "mine": 3, "named": 1},
    async_named_graphs_side_by_side: {"left": 2, "right": 1, "research": 1},
}
"""Calls by agent. The streams that are read while something else is asked are below: their lengths differ."""
STREAMS = (
    streamed_while_the_consumer_asks_too,
    async_streamed_while_the_consumer_asks_too,
    streams_left_in_the_middle,
)


# -- checks ----------------------------------------------------------------------------------------------------------


def _messages(state: Any) -> list:
    return [(type(message).__name__, message.content) for message in state["messages"]]


def _plain(piece: Any) -> Any:
    """A streamed piece without the ids that are new every time."""
    if isinstance(piece, tuple | list):
        return [_plain(one) for one in piece]
    if isinstance(piece, dict):
        return {key: _plain(value) for key, value in piece.items() if key in ("said", "messages")}
    return getattr(piece, "content", None) if hasattr(piece, "content") else isinstance(piece, str)


def settled(output: Any) -> Any:
    """Branches may end in any order, with and without us."""
    if isinstance(output, dict):
        return {key: sorted(map(str, value)) if key == "said" else settled(value) for key, value in output.items()}
    return [settled(one) for one in output] if isinstance(output, list | tuple) else output


@pytest.fixture
def world(recording):
    def make(tag: str) -> World:
        # ChatOpenAI shares async clients by URL, and those belong to the event loop of one test of one file.
        url = f"{recording.model.url}/graphs/{next(_numbers)}/v1"
        return World(
            ChatOpenAI(model="m", base_url=url, api_key=SecretStr("x"), max_retries=0),
            openai.OpenAI(base_url=url, api_key="x", max_retries=0),
            openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0),
            tag,
        )

    return make


def run(scenario: Callable[[World], Any], world: World) -> Any:
    result = scenario(world)
    return asyncio.run(result) if isinstance(result, Coroutine) else result


def spoken(recording) -> dict[str, int]:
    """Check every call against what it says of itself; return how many were made under each name."""
    chats = recording.spans("chat")
    assert len(chats) == len(recording.model.requests)
    names: dict[str, int] = {}
    for span in chats:
        messages = json.loads(span.attributes[semconv.INPUT_MESSAGES])
        _, name, _, tag = next(m for m in messages if m["role"] == "user")["parts"][0]["content"].split()
        assert span.attributes.get(semconv.AGENT_NAME, NOBODY) == name
        assert span.attributes.get(semconv.ROLLOUT_ID) == tag
        names[name] = names.get(name, 0) + 1
    return names


def unwatched(scenario: Callable[[World], Any], world: World) -> Any:
    with silence():
        return run(scenario, world)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *STREAMS], ids=lambda scenario: scenario.__name__)
def test_every_call_is_its_speakers_and_nothing_changes(recording, world, scenario):
    with lt.rollout("t", rollout_id="r1"):
        watched = run(scenario, world("r1"))
    names = spoken(recording)
    if scenario in SCENARIOS:
        assert names == SCENARIOS[scenario]
    else:
        assert set(names) >= {"first", NOBODY}
    assert settled(watched) == settled(unwatched(scenario, world("r1")))


@pytest.mark.parametrize("scenario", [nested_agents, agents_as_tools, threads_and_executors, async_subgraphs])
def test_a_decorated_agent_around_a_graph_changes_no_name_inside(recording, world, scenario):
    with lt.rollout("t", rollout_id="r1"):
        lt.agent("around")(run)(scenario, world("r1"))
    assert spoken(recording) == SCENARIOS[scenario]


MANY = 40


@pytest.mark.long
def test_forty_rollouts_at_once_in_threads(recording, world):
    team = (nested_agents, agents_as_tools, parallel_branches, sent_to_workers, threads_and_executors)
    shared = world("")

    def attempt(number: int) -> None:
        with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            run(team[number % len(team)], replace(shared, tag=f"r{number}"))

    with ThreadPoolExecutor(MANY) as pool:
        list(pool.map(attempt, range(MANY)))
    expected: dict[str, int] = {}
    for scenario in team:
        for name, calls in SCENARIOS[scenario].items():
            expected[name] = expected.get(name, 0) + calls * MANY // len(team)
    assert spoken(recording) == expected


@pytest.mark.long
def test_forty_rollouts_at_once_in_one_event_loop(recording, world):
    team: Any = (async_subgraphs, async_agents_as_tools, async_parallel_branches, async_sent_to_subgraphs)
    shared = world("")

    async def attempt(number: int) -> None:
        async with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            await team[number % len(team)](replace(shared, tag=f"r{number}"))

    async def all_of_them() -> None:
        await asyncio.gather(*(attempt(number) for number in range(MANY)))

    asyncio.run(all_of_them())
    expected: dict[str, int] = {}
    for scenario in team:
        for name, calls in SCENARIOS[scenario].items():
            expected[name] = expected.get(name, 0) + calls * MANY // len(team)
    assert spoken(recording) == expected


@pytest.mark.long
def test_forty_items_of_a_batch_each_in_a_rollout_of_its_own(recording, world):
    """One compiled graph for all of them, as a program would have it."""
    shared = world("")
    asked = [replace(shared, tag=f"r{number}") for number in range(MANY)]
    graph = fan(
        left=lambda state: {"said": [asked[state["number"]].ask("left")]},
        right=lambda state: {"said": [asked[state["number"]].ask_raw("right")]},
    )

    def attempt(number: int) -> Any:
        with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            return graph.invoke({"said": [], "number": number})

    RunnableLambda(attempt).batch(list(range(MANY)), {"max_concurrency": MANY})
    assert spoken(recording) == {"left": MANY, "right": MANY}


def test_a_graph_that_waits_for_a_person_or_hands_over_has_not_failed(recording, world):
    asked = world("r1")

    @tool
    def approve(question: str) -> str:
        """Approve."""
        return str(interrupt("may I?"))

    @lt.agent("clerk")
    def clerk(state: State) -> dict:
        return {"said": [interrupt("which one?")]}

    @lt.tool
    def choose() -> str:
        return interrupt("this one?")

    @lt.agent("leader")
    def leader(state: State) -> Command:
        return Command(goto="last", graph=Command.PARENT)

    def paused(node: Any) -> Any:
        return StateGraph(State).add_node("node", node).add_edge(START, "node").compile(checkpointer=InMemorySaver())

    thread: Any = {"configurable": {"thread_id": "1"}}
    agent = create_agent(asked.chat, [approve], name="boss", checkpointer=InMemorySaver())
    with lt.rollout("t", rollout_id="r1"):
        agent.invoke(asked.question("boss"), thread)
        agent.invoke(Command(resume="yes"), thread)
        paused(clerk).invoke(EMPTY, thread)
        paused(lambda state: {"said": [choose()]}).invoke(EMPTY, thread)
        inner = StateGraph(State).add_node("leader", leader).add_edge(START, "leader").compile()
        chain(inner=inner, last=asked.node("last")).invoke(EMPTY)
    paused(lt.rollout("decorated")(clerk)).invoke(EMPTY, thread)
    ended = [*recording.spans("execute_tool"), *recording.spans("invoke_agent"), *recording.spans("rollout")]
    assert [span.name.split()[-1] for span in ended if span.error is not None] == []
    assert sorted(span.name.split()[-1] for span in ended) == [
        "approve", "approve", "choose", "clerk", "clerk", "decorated", "leader", "t"
    ]  # fmt: skip
    assert not any(span.attributes.get("error.type") for span in ended)
