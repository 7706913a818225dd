"""Train an agent to write small functions: held-out problems, training steps, the same held-out problems again.

    lightning-trainer serve --config examples/code/lightning.toml
    python examples/code/train.py --steps 30

The agent (agent.py) is not changed and does not know. What it writes runs in a sandbox, which needs Linux
(docs/environments.md, The sandbox); the reward is the share of hidden tests that pass.
"""

import argparse
import os
import sys
from queue import SimpleQueue

from agent import solve
from tasks import Task, heldout_tasks, score, train_tasks

from lightning_trainer.environments.sandbox import Sandbox, SandboxLimits
from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import AttemptEnded, Event, Runner

TASKS_PER_STEP = 8
"""The policy's groups_per_step."""
SANDBOXES = 2
"""More than there are cores would only wait for each other."""
LIMITS = SandboxLimits(seconds=1.0)
"""A function of one line takes milliseconds; what takes longer hangs, and every rollout of the group waits for it."""
_free: SimpleQueue[Sandbox] = SimpleQueue()


def graded(code: str, task: Task) -> float:
    """Score in the next sandbox that is free."""
    sandbox = _free.get()
    try:
        return score(code, task, sandbox)
    finally:
        _free.put(sandbox)


def sample(task: Task) -> float:
    """One attempt in training: sampled, so that the attempts of a group differ."""
    return graded(solve(task.question, temperature=1.0), task)


def answer(task: Task) -> float:
    """One attempt in an evaluation: the most likely answer."""
    return graded(solve(task.question, temperature=0.0), task)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", default="coder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30)
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
        print(f"{stage}: {successes} of {len(ended)} held-out problems solved", flush=True)

    try:
        for _ in range(SANDBOXES):
            _free.put(Sandbox(LIMITS))
        evaluate("before")
        runner = Runner(options.policy, sample, concurrency=options.concurrency, timeout_s=300, on_event=show)
        # A seed and a step name the tasks, so an interrupted run goes on with the same ones.
        runner.train(lambda step: train_tasks(options.seed * 10_000 + step, TASKS_PER_STEP), steps=options.steps)
        evaluate("after")
    except LightningError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
