"""An agent program as a user would write it, run as a process of its own by the loop tests.

Two calls a rollout to the policy through the plain OpenAI client; the reward depends on the attempt's number alone, so
every group has a spread. A greedy attempt, where one is wanted as a baseline, earns a quarter.
"""

import argparse
import itertools
import os

import lightning_instrumentation as lt
from openai import OpenAI

from lightning_trainer.rollouts import Runner


class Task:
    def __init__(self, task_id: str) -> None:
        self.id = task_id


client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=300)
attempts = itertools.count()


@lt.agent("tester")
def solve(question: str, temperatures: tuple[float, float] = (0.7, 1.3)) -> str:
    messages: list = [{"role": "user", "content": question}]
    for temperature in temperatures:
        reply = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, temperature=temperature)
        messages += [
            {"role": "assistant", "content": reply.choices[0].message.content},
            {"role": "user", "content": "go on"},
        ]
    return messages[-2]["content"]


def attempt(task: Task) -> float:
    solve(f"say something about {task.id}")
    return float(next(attempts) % 2)


def greedy_attempt(task: Task) -> float:
    solve(f"say something about {task.id}", (0.0, 0.0))
    return 0.25


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    Runner("tiny", attempt, baseline=greedy_attempt, concurrency=1, timeout_s=300).train(
        lambda step: [Task(f"task-{step}-{n}") for n in range(2)], steps=options.steps
    )
    lt.flush(30)
