"""The part that the frameworks' examples share: a team's questions, what it is shown, and the steps that train it.

A team is anything that takes a question and a temperature and returns a number, or None; it may be a coroutine.
"""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from tasks import Task, heldout_tasks, train_tasks
from team import EXPRESSIONS, PLANS

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import Event, Runner, StepEnded

POLICY = "team"
"""One policy for both agents: they learn from each other's calls, too."""
PLANNER, WORKER = "Say what to calculate.", "Write the expression."
TASKS_PER_STEP = 6
"""The policy's groups_per_step."""
MAX_TOKENS = 16

Team = Callable[[str, float], Awaitable[int | None]] | Callable[[str, float], int | None]

__all__ = ["EXPRESSIONS", "MAX_TOKENS", "PLANNER", "PLANS", "POLICY", "WORKER", "conversation", "main"]


def conversation(shown: Sequence[tuple[str, str]], asked: str) -> list[dict[str, str]]:
    """Return messages that show how such questions are answered, and then ask one."""
    messages = []
    for question, answer in shown:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": asked}]


def main(team: Team, framework: str) -> None:
    """Ask held-out questions, train for some steps, and ask the same held-out questions again."""
    parser = argparse.ArgumentParser(description=f"Train a team of two that {framework} runs.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--heldout", type=int, default=48)
    parser.add_argument("--concurrency", type=int, default=48)
    options = parser.parse_args()
    endpoint = os.environ.setdefault("LIGHTNING_ENDPOINT", "http://127.0.0.1:8321")
    os.environ.setdefault("OPENAI_BASE_URL", f"{endpoint}/v1")
    os.environ.setdefault("OPENAI_API_KEY", "not-needed-on-loopback")

    def attempt(temperature: float) -> Callable[[Task], Awaitable[float] | float]:
        async def awaited(found: Awaitable[int | None], task: Task) -> float:
            return float(await found == task.answer)

        def scored(task: Task) -> Awaitable[float] | float:
            found = team(task.question, temperature)
            return awaited(found, task) if isinstance(found, Awaitable) else float(found == task.answer)

        return scored

    def evaluate(stage: str) -> None:
        runner = Runner(POLICY, attempt(0.0), concurrency=options.concurrency, timeout_s=300)
        ended = runner.evaluate(heldout_tasks(options.heldout), stage=stage)
        failed = [one.error for one in ended if one.error is not None]
        if len(failed) == len(ended):
            raise LightningError(f"no attempt came to an end; the first: {failed[0]}")
        print(f"held-out {stage}: {sum(one.reward == 1.0 for one in ended)}/{len(ended)}", flush=True)

    def show(event: Event) -> None:
        if isinstance(event, StepEnded):
            print(f"step {event.step}: reward {event.reward_mean or 0.0:.2f}", flush=True)

    try:
        runner = Runner(
            POLICY,
            attempt(1.0),
            run=f"{framework}-example-{options.seed}",
            concurrency=options.concurrency,
            timeout_s=300,
            on_event=show,
        )
        if not runner.steps_done():  # a run that continues has done this before
            evaluate("before")
        # Seed and step determine the tasks, so an interrupted run continues with the same ones.
        runner.train(lambda step: train_tasks(options.seed * 10_000 + step, TASKS_PER_STEP), steps=options.steps)
        evaluate("after")
    except LightningError as error:
        sys.exit(f"error: {error}")
