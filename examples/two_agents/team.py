"""A team of two: the planner puts a question into a plan, the worker the plan into an expression; a result needs both.

export OPENAI_BASE_URL=http://127.0.0.1:8321/v1 OPENAI_API_KEY=unused
python examples/two_agents/team.py "Kim has 40 nuts and eats 13. How many nuts are left?"
"""

import re
import sys
from functools import cache

import lightning_instrumentation as lt
from openai import OpenAI

PLANS = (
    ("A road is 900 km long and 300 km are done. How many km are not done?", "subtract 300 from 900"),
    ("A car costs 770 dollars and a bike 210 dollars. How much is that together?", "add 770 and 210"),
    ("A day has 24 hours. How many hours do 14 days have?", "multiply 24 by 14"),
    ("Kim has 12 pears and eats 5. How many pears are left?", "subtract 5 from 12"),
    ("A week has 7 days. How many days do 52 weeks have?", "multiply 7 by 52"),
    ("Kim has 35 nuts and finds 18 more. How many nuts does Kim have?", "add 35 and 18"),
)
EXPRESSIONS = (
    ("subtract 300 from 900", "900 - 300"),
    ("add 770 and 210", "770 + 210"),
    ("multiply 24 by 14", "24 * 14"),
    ("subtract 5 from 12", "12 - 5"),
)
_EXPRESSION = re.compile(r"\s*(\d{1,6})\s*([-+*])\s*(\d{1,6})\s*")


@cache
def client() -> OpenAI:
    return OpenAI(timeout=300)


@lt.agent("planner")
def plan(question: str, temperature: float) -> str:
    return _say("planner", "Say what to calculate.", PLANS, question, temperature)


@lt.agent("worker")
def work(planned: str, temperature: float) -> str:
    return _say("worker", "Write the expression.", EXPRESSIONS, planned, temperature)


def solve(question: str, *, temperature: float = 0.0) -> int | None:
    """Return the team's answer to a question; None if the worker's answer is not an expression."""
    return calculate(work(plan(question, temperature), temperature))


def calculate(expression: str) -> int | None:
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        return None
    a, b = int(match[1]), int(match[3])
    return {"+": a + b, "-": a - b, "*": a * b}[match[2]]


def _say(model: str, instruction: str, shown: tuple[tuple[str, str], ...], asked: str, temperature: float) -> str:
    messages = [{"role": "system", "content": instruction}]
    for question, answer in shown:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": asked})
    reply = client().chat.completions.create(
        model=model,
        messages=messages,  # pyright: ignore[reportArgumentType]
        temperature=temperature,
        max_tokens=16,
    )
    return reply.choices[0].message.content or ""


if __name__ == "__main__":
    print(solve(sys.argv[1]))
