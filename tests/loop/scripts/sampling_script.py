"""An agent that samples in another way in every step; the reward depends on the attempt's number alone."""

import argparse
import itertools
import os
from typing import Any, NamedTuple

import lightning_instrumentation as lt
from openai import OpenAI

from lightning_trainer.rollouts import Runner

_SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "paint", "description": "Paint.", "parameters": _SCHEMA}}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "thing", "schema": _SCHEMA}}},
    "named tool": {"tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "paint"}}},
    "top_p": {"top_p": 0.3},
    "top_k": {"extra_body": {"top_k": 5}},
    "min_p": {"temperature": 0.8, "extra_body": {"min_p": 0.7}},
    "logit_bias": {"logit_bias": {"40": 6, "41": -100, "90": 3}},
    "penalties": {
        "presence_penalty": 0.6,
        "frequency_penalty": 0.9,
        "extra_body": {"repetition_penalty": 1.4},
    },
    "all at once": {
        "temperature": 0.7,
        "top_p": 0.9,
        "logit_bias": {"40": 6},
        "frequency_penalty": 0.5,
        "extra_body": {"top_k": 50, "min_p": 0.01, "repetition_penalty": 1.2},
        "response_format": {"type": "json_schema", "json_schema": {"name": "thing", "schema": _SCHEMA}},
    },
}
"""What is asked for, in the order of the steps."""


class Task(NamedTuple):
    id: str
    way: str


client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=300)
attempts = itertools.count()


@lt.agent("tester")
def solve(task: Task) -> None:
    messages: list = [{"role": "user", "content": f"say something about {task.id}"}]
    client.chat.completions.create(model="tiny", messages=messages, max_tokens=32, **WAYS[task.way])


def attempt(task: Task) -> float:
    solve(task)
    return float(next(attempts) % 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=len(WAYS))
    options = parser.parse_args()
    ways = list(WAYS)
    Runner("tiny", attempt, concurrency=1, timeout_s=300).train(
        lambda step: [Task(f"task-{step}-{n}", ways[step - 1]) for n in range(2)], steps=options.steps
    )
    lt.flush(30)
