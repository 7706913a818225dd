"""An agent of two turns, the second one streamed; the reward depends on the attempt's number alone."""

import itertools
import os
import sys

import lightning_instrumentation as lightning
from openai import OpenAI

from lightning_trainer.rollouts import Runner

client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=300)
attempts = itertools.count()


@lightning.agent("tester")
def solve(task: str) -> None:
    messages: list = [{"role": "user", "content": f"say something about {task}"}]
    first = client.chat.completions.create(model="tiny", messages=messages, max_tokens=16)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "on"}]
    for _ in client.chat.completions.create(model="tiny", messages=messages, max_tokens=24, stream=True):
        pass


def attempt(task: str) -> float:
    solve(task)
    return float(next(attempts) % 2)


if __name__ == "__main__":
    Runner("tiny", attempt, concurrency=4, timeout_s=300).train(
        lambda step: [f"task-{step}-{n}" for n in range(2)], steps=int(sys.argv[1])
    )
    lightning.flush(30)
