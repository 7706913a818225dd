"""A LangChain agent as a user would write it, with the two lines; a test takes them out and compares what it prints."""

import os

import lightning_instrumentation as lt
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def calculator(expression: str) -> str:
    """Work out an arithmetic expression."""
    return str(sum(int(term) for term in expression.split("+")))


model = ChatOpenAI(model=os.environ["OPENAI_MODEL"], temperature=0, max_completion_tokens=8, timeout=300)
graph = create_agent(model, [calculator], system_prompt="Answer briefly.")


@lt.agent("two lines")
def solve(question: str) -> str:
    state = graph.invoke({"messages": [HumanMessage(question)]}, {"recursion_limit": 4})
    return repr([message.content for message in state["messages"]])


if __name__ == "__main__":
    for question in ("What is 2 + 3?", "What is 40 + 2?", "Who are you?"):
        print(solve(question))
