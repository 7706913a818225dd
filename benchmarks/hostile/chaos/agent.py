"""The agent whose run is recorded: two calls a rollout; the reward depends on the attempt's number alone."""

import itertools
import os
import sys

import lightning_instrumentation as lt
from openai import OpenAI

from lightning_trainer.rollouts import Runner


class Task:
    def __init__(self, task_id: str) -> None:
        self.id = task_id


client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=600)
attempts = itertools.count()


@lt.agent("tester")
def solve(question: str) -> None:
    messages: list = [{"role": "user", "content": question}]
    for temperature in (0.7, 1.3):
        reply = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, temperature=temperature)
        said = reply.choices[0].message.content
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]


def attempt(task: Task) -> float:
    solve(f"say something about {task.id}")
    return float(next(attempts) % 2)


if __name__ == "__main__":
    Runner("tiny", attempt, concurrency=1, timeout_s=600).train(
        lambda step: [Task(f"task-{step}-{n}") for n in range(2)], steps=int(sys.argv[1])
    )
    lt.flush(60)
