"""A team as a user would write it: a planner, and two workers who go on from its plan; a rollout needs them all.

All of them say the same model name, so it is the agent that decides which policy answers. The planner is to say tokens
of the lower half of the vocabulary, the workers those of the upper half, and a rollout is worth the product: who is
good alone earns nothing. Prints each agent's mean score on held-out rollouts as a JSON line.
"""

import argparse
import json
import os
import threading
from collections import defaultdict

import lightning_instrumentation as lt
from openai import OpenAI

from lightning_trainer.rollouts import Runner

HALF = 160
client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=300)
lock = threading.Lock()
scores: dict[str, list[float]] = defaultdict(list)


class Task:
    def __init__(self, task_id: str) -> None:
        self.id = task_id


def say(prompt: str) -> tuple[str, list[int]]:
    reply = client.chat.completions.create(
        model="whatever-the-team-uses",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=8,
        temperature=1.0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    ids = (reply.choices[0].model_extra or {})["token_ids"]
    return reply.choices[0].message.content or "", ids


@lt.agent("planner")
def plan(question: str) -> tuple[str, float]:
    text, ids = say(question)
    return text, sum(token < HALF for token in ids) / len(ids)


def work(planned: str) -> float:
    _, ids = say(f"work on {planned[:4]!r}")
    return sum(token >= HALF for token in ids) / len(ids)


WORKERS = {name: lt.agent(name)(work) for name in ("worker_a", "worker_b")}


def attempt(task: Task) -> float:
    planned, of_planner = plan(f"plan {task.id[-1]}")
    found = {"planner": of_planner}
    for name, worker in WORKERS.items():
        found[name] = worker(planned)
    with lock:
        for name, score in found.items():
            scores[name].append(score)
    return found["planner"] * (found["worker_a"] + found["worker_b"]) / 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--heldout", type=int, default=32)
    parser.add_argument("--policies", nargs="+", default=["planner", "worker"])
    options = parser.parse_args()
    runner = Runner(options.policies, attempt, concurrency=8, timeout_s=300)
    if options.steps:
        runner.train(lambda step: [Task(f"task-{step}-{n}") for n in range(2)], steps=options.steps)
    scores.clear()
    ended = runner.evaluate([Task(f"heldout-{n}") for n in range(options.heldout)], stage=f"after-{options.steps}")
    found = {name: sum(of) / len(of) for name, of in scores.items()}
    print(json.dumps({**found, "team": sum(one.reward or 0.0 for one in ended) / len(ended)}))
    lt.flush(30)
