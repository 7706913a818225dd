"""A small newsroom: an ordinary LangGraph program of four nodes, and two lines of lightning.

export OPENAI_BASE_URL=http://127.0.0.1:8321/v1 OPENAI_API_KEY=unused OPENAI_MODEL=example
python examples/langgraph/agent.py "lighthouses"

Each node is an agent of its own: a policy with ``agents = ["researcher"]`` trains the three researchers and leaves the
planner, the writer and the critic with the model that they always used.
"""

import operator
import os
import sys
from typing import Annotated, TypedDict

import lightning_instrumentation as lt
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from openai import OpenAI

lt.init()

MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
ANGLES = ("its history", "how it works", "who looks after it")


class Newsroom(TypedDict):
    topic: str
    plan: str
    notes: Annotated[list[str], operator.add]
    article: str
    verdict: str


class Assignment(TypedDict):
    topic: str
    angle: str


chat = ChatOpenAI(model=MODEL, temperature=0, max_completion_tokens=60)


def planner(state: Newsroom) -> dict:
    return {"plan": chat.invoke(f"Plan an article about {state['topic']} in one sentence.").text}


def assign(state: Newsroom) -> list[Send]:
    """Send out three researchers, side by side."""
    return [Send("researcher", Assignment(topic=state["topic"], angle=angle)) for angle in ANGLES]


def researcher(assignment: Assignment) -> dict:
    return {"notes": [chat.invoke(f"One fact about {assignment['topic']}: {assignment['angle']}.").text]}


def writer(state: Newsroom) -> dict:
    notes = "\n".join(state["notes"])
    article = "".join(chunk.text for chunk in chat.stream(f"{state['plan']}\nNotes:\n{notes}\nWrite the article."))
    return {"article": article}


def critic(state: Newsroom) -> dict:
    """Judge the article with the plain OpenAI client, without LangChain."""
    answer = OpenAI().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": f"Is this article good? Yes or no.\n{state['article']}"}]
    )
    return {"verdict": answer.choices[0].message.content or ""}


def newsroom():
    graph = StateGraph(Newsroom)
    graph.add_node("planner", planner)
    graph.add_node("researcher", researcher)  # pyright: ignore[reportArgumentType]
    graph.add_node("writer", writer)
    graph.add_node("critic", critic)
    graph.add_edge(START, "planner")
    graph.add_conditional_edges("planner", assign, ["researcher"])
    graph.add_edge("researcher", "writer")
    graph.add_edge("writer", "critic")
    graph.add_edge("critic", END)
    return graph.compile()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('usage: python examples/langgraph/agent.py "TOPIC"')
    result = newsroom().invoke({"topic": sys.argv[1], "plan": "", "notes": [], "article": "", "verdict": ""})
    print(result["article"])
    print(f"-- {result['verdict']}")
