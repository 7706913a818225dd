"""An agent that any run can be made of: one call an attempt, and every second attempt is rewarded.

As a program with ``--steps`` it trains a policy over the same tasks in every step. Without, it is one attempt for
``lightning-trainer rollouts``: the task comes in, the reward goes out, once the file that it is told of is there.
"""

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path

import lightning_instrumentation as lt
from openai import AsyncOpenAI, OpenAI

from lightning_trainer.rollouts import Runner

numbers = itertools.count()


class Task:
    def __init__(self, task_id: str) -> None:
        self.id = task_id


def asked(task_id: str) -> dict:
    return {
        "model": "whatever",
        "messages": [{"role": "user", "content": f"say something about {task_id}"}],
        "max_tokens": 6,
        "temperature": 1.0,
        "extra_body": {"ignore_eos": True},
    }


def train(options: argparse.Namespace) -> None:
    client = AsyncOpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=300)

    @lt.agent(options.agent)
    async def solve(task_id: str) -> None:
        await client.chat.completions.create(**asked(task_id))

    async def attempt(task: Task) -> float:
        await solve(task.id)
        return float(next(numbers) % 2)

    # One after the other, so that the two attempts of a group are a rewarded one and one that is not.
    Runner(options.policy, attempt, concurrency=1, timeout_s=300).train(
        lambda step: [Task(f"task-{n}") for n in range(options.groups)], steps=options.steps
    )
    lt.flush(30)


def one_attempt(options: argparse.Namespace) -> None:
    task = json.load(sys.stdin)
    while not options.wait_for.exists():
        time.sleep(0.05)
    OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=300).chat.completions.create(
        **asked(task["id"])
    )
    with options.count.open("a") as file:
        file.write("x")
    print(options.count.stat().st_size % 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--policy")
    parser.add_argument("--agent")
    parser.add_argument("--groups", type=int)
    parser.add_argument("--wait-for", type=Path)
    parser.add_argument("--count", type=Path)
    options = parser.parse_args()
    if options.steps is None:
        one_attempt(options)
    else:
        train(options)
