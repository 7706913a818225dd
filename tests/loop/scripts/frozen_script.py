"""Two agents of ours and one of someone else's, at another server; ``--bare``: without any line of ours.

Prints what the outsider was answered.
"""

import argparse
import os

from openai import OpenAI

parser = argparse.ArgumentParser()
parser.add_argument("--bare", action="store_true")
parser.add_argument("--steps", type=int, default=0)
options = parser.parse_args()
elsewhere = OpenAI(base_url=os.environ["ELSEWHERE"], api_key="secret-of-the-outsider", timeout=60)


def outsider(question: str) -> str:
    reply = elsewhere.chat.completions.create(
        model="their-model", messages=[{"role": "tool", "tool_call_id": "1", "content": question}], temperature=0.5
    )
    return reply.choices[0].message.content or ""


if options.bare:
    print(outsider("one"), outsider("two"))
else:
    import itertools

    import lightning_instrumentation as lt

    from lightning_trainer.rollouts import Runner

    ours = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=300)
    numbers = itertools.count()

    class Task:
        def __init__(self, task_id: str) -> None:
            self.id = task_id

    def say(question: str) -> str:
        messages = [{"role": "user", "content": question}]
        reply = ours.chat.completions.create(model="any", messages=messages, max_tokens=8)  # pyright: ignore
        return reply.choices[0].message.content or ""

    planner, judge = lt.agent("planner")(say), lt.agent("judge")(say)
    outsider = lt.agent("outsider")(outsider)

    def attempt(task: Task) -> float:
        judge(planner(task.id)[:2])
        return float(next(numbers) % 2)

    runner = Runner(["planner", "judge"], attempt, concurrency=1, timeout_s=300)
    runner.train(lambda step: [Task(f"t-{step}")], steps=options.steps)
    print(outsider("one"), outsider("two"))
    lt.flush(30)
