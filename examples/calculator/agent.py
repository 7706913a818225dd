"""An agent that answers quantitative questions with a calculator: ordinary LangChain, and two lines of lightning.

export OPENAI_BASE_URL=http://127.0.0.1:8321/v1 OPENAI_API_KEY=unused OPENAI_MODEL=example
python examples/calculator/agent.py "A crate holds 31 pears. How many pears do 12 crates hold?"
"""

import ast
import operator
import os
import sys
from collections.abc import Callable
from functools import cache

import lightning_instrumentation as lt
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse, wrap_model_call
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError

INSTRUCTIONS = "Answer with the calculator."
EXAMPLES = (
    ("A road is 900 km long and 300 km are done. How many km are not done?", "900 - 300", "600"),
    ("A car costs 770 dollars and a bike 210 dollars. How much is that together?", "770 + 210", "980"),
    ("A day has 24 hours. How many hours do 14 days have?", "24 * 14", "336"),
    ("Kim has 40 nuts, finds 25 more and eats 30. How many nuts does Kim have?", "40 + 25 - 30", "35"),
    ("Kim buys 15 bags with 20 nuts each and 50 loose nuts. How many nuts is that?", "15 * 20 + 50", "350"),
    ("Kim has 12 pears and eats 5. How many pears are left?", "12 - 5", "7"),
    ("A week has 7 days. How many days do 52 weeks have?", "7 * 52", "364"),
)
"""Question, expression, result: a model of this size must be shown how to use a tool."""

_STEPS = 4
"""Model, tool, model, tool: a second call of the tool is one too many, and leaves no step for the answer."""
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@tool
def calculator(expression: str) -> str:
    """Work out an arithmetic expression."""
    try:
        if len(expression) > 80:
            raise ValueError("too long")
        value = _evaluate(ast.parse(expression, mode="eval").body)
        return str(int(value)) if value == int(value) else str(value)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return "error"


def _evaluate(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left), _evaluate(right))
    raise ValueError("only numbers and + - * / ( )")


def _examples() -> list[AnyMessage]:
    messages: list[AnyMessage] = []
    for index, (question, expression, result) in enumerate(EXAMPLES):
        call = {"name": "calculator", "args": {"expression": expression}, "id": f"example-{index}"}
        messages += [
            HumanMessage(question),
            AIMessage("", tool_calls=[call]),
            ToolMessage(result, tool_call_id=call["id"]),
            AIMessage(f"The answer is {result}."),
        ]
    return messages


@wrap_model_call
def tool_first(request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> ModelResponse:
    """Have the engine force a call of the tool in answer to a question; the tool's result is answered in words."""
    asked = isinstance(request.messages[-1], HumanMessage)
    return handler(request.override(tool_choice="calculator") if asked else request)


@cache
def _graph(temperature: float, middleware: tuple[AgentMiddleware, ...]):
    model = ChatOpenAI(
        model=os.environ.get("OPENAI_MODEL", "calculator"),
        temperature=temperature,
        max_completion_tokens=48,
        timeout=300,
    )
    return create_agent(model, [calculator], system_prompt=INSTRUCTIONS, middleware=middleware)


@lt.agent("calculator")
def solve(question: str, temperature: float = 0.0, *, middleware: tuple[AgentMiddleware, ...] = ()) -> str:
    """Return the agent's final answer; empty if it never stopped calling its tool.

    Args:
        middleware: LangChain middleware that may change how the model is asked, such as ``tool_first``.
    """
    messages = [*_examples(), HumanMessage(question)]
    try:
        state = _graph(temperature, middleware).invoke({"messages": messages}, {"recursion_limit": _STEPS})
    except GraphRecursionError:
        return ""
    return state["messages"][-1].text


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('usage: python examples/calculator/agent.py "QUESTION"')
    print(solve(sys.argv[1]))
