"""An agent that answers with a Python function of one line: the plain OpenAI client, and two lines of lightning.

export OPENAI_BASE_URL=http://127.0.0.1:8321/v1 OPENAI_API_KEY=unused OPENAI_MODEL=example
python examples/code/agent.py "f(n) returns the product of n and 7."

It only writes; tasks.py runs what it wrote, in a sandbox.
"""

import os
import sys
from functools import cache
from typing import Any

import lightning_instrumentation as lt
from openai import OpenAI

INSTRUCTIONS = "Write the function in one line of Python."
EXAMPLES = (
    ("f(n) returns the half of n.", "def f(n): return n / 2"),
    ("f(s) returns the last letter of s.", "def f(s): return s[-1]"),
    ("f(xs) returns the smallest of xs.", "def f(xs): return min(xs)"),
    ("f(n) returns whether n is 100.", "def f(n): return n == 100"),
    ("f(n) returns 1000 minus n, and 50 less.", "def f(n): return 1000 - n - 50"),
)
"""Problem and answer: a model of this size has to be shown that an answer is code and nothing else."""

_MAX_TOKENS = 32


@cache
def client() -> OpenAI:
    return OpenAI(timeout=300)


@lt.agent("coder")
def solve(question: str, *, temperature: float = 0.0) -> str:
    """Return the code that the agent writes."""
    messages: list[Any] = [{"role": "system", "content": INSTRUCTIONS}]
    for problem, code in EXAMPLES:
        messages += [{"role": "user", "content": problem}, {"role": "assistant", "content": code}]
    made = client().chat.completions.create(
        model=os.environ.get("OPENAI_MODEL", "coder"),
        messages=[*messages, {"role": "user", "content": question}],
        max_tokens=_MAX_TOKENS,
        temperature=temperature,
    )
    return made.choices[0].message.content or ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('usage: python examples/code/agent.py "PROBLEM"')
    print(solve(sys.argv[1]))
