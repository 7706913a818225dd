"""An agent of two turns, the second one streamed; the reward depends on the number of the attempt at its task alone."""

import itertools
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import lightning_instrumentation as lt
from openai import OpenAI

from lightning_trainer.rollouts import Runner


class Task(NamedTuple):
    id: str


client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=300)
attempts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


@lt.agent("tester")
def solve(task: Task) -> None:
    messages: list = [{"role": "user", "content": f"say something about {task.id}"}]
    first = client.chat.completions.create(model="tiny", messages=messages, max_tokens=16)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "on"}]
    for _ in client.chat.completions.create(model="tiny", messages=messages, max_tokens=24, stream=True):
        pass


def attempt(task: Task) -> float:
    solve(task)
    return float(next(attempts[task.id]) % 2)


if __name__ == "__main__":
    Runner("tiny", attempt, concurrency=4, timeout_s=300).train(
        lambda step: [Task(f"task-{step}-{n}") for n in range(2)], steps=int(sys.argv[1])
    )
    lt.flush(30)
