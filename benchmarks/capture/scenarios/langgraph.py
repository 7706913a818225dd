"""LangGraph: plain and async nodes, an agent as subgraph, parallel branches, a raw client call, a bare thread pool."""

import concurrent.futures
from typing import Any

import openai
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import SecretStr

from benchmarks.capture.scenarios import KEY, MODEL, Scenario, Task


@tool
def search(query: str) -> str:
    """Search."""
    return f"nothing about {query}"


def _graph(task: Task, *, with_async_node: bool) -> Any:
    model = ChatOpenAI(model=MODEL, base_url=task.base_url, api_key=SecretStr(KEY), max_retries=0)

    def asked(agent: str) -> list[Any]:
        return [("system", task.instructions(agent)), ("user", task.question)]

    def planner(state: MessagesState) -> Any:
        return {"messages": [model.invoke(asked("planner"))]}

    def critic(state: MessagesState) -> Any:
        return {"messages": [model.invoke(asked("critic"))]}

    async def async_critic(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(asked("critic"))]}

    def writer(state: MessagesState) -> Any:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return {"messages": [pool.submit(model.invoke, asked("writer")).result()]}

    def raw(state: MessagesState) -> Any:
        with openai.OpenAI(base_url=task.base_url, api_key=KEY, max_retries=0) as client:
            answer = client.chat.completions.create(model=MODEL, messages=task.messages("raw"))
        return {"messages": [("ai", answer.choices[0].message.content or "")]}

    researcher = create_agent(model, tools=[search], system_prompt=task.instructions("researcher"), name="researcher")
    graph: Any = StateGraph(MessagesState)
    nodes = {"planner": planner, "critic": async_critic if with_async_node else critic, "researcher": researcher}
    for name, node in (nodes | {"writer": writer, "raw": raw}).items():
        graph.add_node(name, node)
    # The critic and the researcher run in parallel.
    edges = (START, "planner"), ("planner", "critic"), ("planner", "researcher"), ("researcher", "writer")
    for one, other in (*edges, ("writer", "raw"), ("raw", END)):
        graph.add_edge(one, other)
    return graph.compile(name="team")


def _asking(task: Task) -> Any:
    return {"messages": [("user", task.question)]}


def sync(task: Task) -> None:
    _graph(task, with_async_node=False).invoke(_asking(task))


async def asynchronous(task: Task) -> None:
    await _graph(task, with_async_node=True).ainvoke(_asking(task))


async def stream(task: Task) -> None:
    async for _ in _graph(task, with_async_node=True).astream(_asking(task), stream_mode="messages"):
        pass


SCENARIO = Scenario(sync, asynchronous, stream)
