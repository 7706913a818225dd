"""Train the team, and say how good each of the two is on held-out questions before and after.

    lightning-trainer serve --config examples/two_agents/lightning.toml
    python examples/two_agents/train.py --steps 20

To train one and freeze the other, set `train = false` in the policy of the one that should stay as it is.
"""

import argparse
import os
import sys
from collections import Counter
from threading import Lock

from tasks import Task, heldout_tasks, result_of, train_tasks
from team import calculate, plan, solve, work

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import Event, Runner, StepEnded

TASKS_PER_STEP = 6
"""Both policies' groups_per_step."""
POLICIES = ("planner", "worker")


def sample(task: Task) -> float:
    """Make one attempt in training: the reward is the team's, and each policy learns from it."""
    return float(solve(task.question, temperature=1.0) == task.answer)


def evaluate(stage: str, tasks: list[Task]) -> None:
    """Print how often the planner's plan, the worker's expression for a right plan, and the team's result are right."""
    right, lock = Counter(), Lock()

    def answer(task: Task) -> float:
        planned = plan(task.question, 0.0)
        found = {
            "planner": result_of(planned) == task.answer,
            "worker": calculate(work(task.plan, 0.0)) == task.answer,
            "team": calculate(work(planned, 0.0)) == task.answer,
        }
        with lock:
            right.update(name for name, good in found.items() if good)
        return float(found["team"])

    ended = Runner(POLICIES, answer, concurrency=16).evaluate(tasks, stage=stage)
    failed = [attempt.error for attempt in ended if attempt.error is not None]
    if len(failed) == len(tasks):
        raise LightningError(f"no attempt came to an end; the first: {failed[0]}")
    shares = ", ".join(f"{name} {right[name]}/{len(tasks)}" for name in (*POLICIES, "team"))
    print(f"held-out {stage}: {shares}", flush=True)


def show(event: Event) -> None:
    if isinstance(event, StepEnded):
        print(f"step {event.step}: reward {event.reward_mean or 0.0:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--heldout", type=int, default=48)
    options = parser.parse_args()
    endpoint = os.environ.setdefault("LIGHTNING_ENDPOINT", "http://127.0.0.1:8321")
    os.environ.setdefault("OPENAI_BASE_URL", f"{endpoint}/v1")
    os.environ.setdefault("OPENAI_API_KEY", "not-needed-on-loopback")
    held_out = heldout_tasks(options.heldout)
    try:
        runner = Runner(POLICIES, sample, concurrency=48, on_event=show)
        if not runner.steps_done():  # a run that continues has done this before
            evaluate("before", held_out)
        runner.train(lambda step: train_tasks(step, TASKS_PER_STEP), steps=options.steps)
        evaluate("after", held_out)
    except LightningError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
