"""What every program that trains the search agent does: held-out questions, training steps, the questions again."""

import argparse
import os
import sys
from collections.abc import Callable

from agent import solve
from tasks import Task, heldout_tasks, score, train_tasks

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import AttemptEnded, Curriculum, Event, Runner

TASKS_PER_STEP = 8
"""The policy's groups_per_step: half of them ask for a country, half for a river, so each step tells them apart."""
CANDIDATES = 24
"""Tasks of a step that a curriculum chooses from."""


def sample(task: Task) -> float:
    """One attempt in training: sampled, so that the attempts of a group differ."""
    return score(solve(task.question, temperature=1.0), task)


def answer(task: Task) -> float:
    """One attempt in an evaluation: the most likely answer."""
    return score(solve(task.question, temperature=0.0), task)


def main(
    about: str | None,
    policy: str,
    sample: Callable[[Task], float] = sample,
    *,
    steps: int = 40,
    curriculum: bool = False,
) -> None:
    """Run as the command line says.

    Args:
        about: the program's documentation, whose first line says what it does.
        sample: one attempt in training.
        steps: when the command line does not say.
        curriculum: each step's tasks are of the kind whose outcome is least certain, instead of half of either.
    """
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--policy", default=policy)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--heldout", type=int, default=72)
    parser.add_argument("--concurrency", type=int, default=64)
    options = parser.parse_args()
    endpoint = os.environ.setdefault("LIGHTNING_ENDPOINT", "http://127.0.0.1:8321")
    os.environ.setdefault("OPENAI_BASE_URL", f"{endpoint}/v1")
    os.environ.setdefault("OPENAI_API_KEY", "not-needed-on-loopback")
    os.environ["OPENAI_MODEL"] = options.policy

    def show(event: Event) -> None:
        if not isinstance(event, AttemptEnded):
            print(f"step {event.step}: reward {event.reward_mean}, {event.rollout_s + event.wait_s:.0f} s", flush=True)
        elif event.error is not None:
            print(f"task {event.task_id}: {event.error}", flush=True)

    def evaluate(stage: str) -> None:
        runner = Runner(options.policy, answer, concurrency=options.concurrency, timeout_s=300, on_event=show)
        ended = runner.evaluate(heldout_tasks(options.heldout), stage=stage)
        successes = sum(attempt.reward == 1.0 for attempt in ended)
        print(f"{stage}: {successes} of {len(ended)} held-out questions answered", flush=True)

    try:
        evaluate("before")
        runner = Runner(
            options.policy,
            sample,
            concurrency=options.concurrency,
            timeout_s=300,
            on_event=show,
            curriculum=Curriculum[Task](lambda task: task.asked, seed=options.seed) if curriculum else None,
        )
        count = CANDIDATES if curriculum else TASKS_PER_STEP
        # A seed and a step name the tasks, so an interrupted run goes on with the same ones.
        runner.train(lambda step: train_tasks(options.seed * 10_000 + step, count), steps=options.steps)
        evaluate("after")
    except LightningError as error:
        sys.exit(f"error: {error}")
