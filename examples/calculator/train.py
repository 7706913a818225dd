"""Train the calculator agent: held-out tasks, training steps, the same held-out tasks again.

The agent (agent.py) is unchanged and knows nothing of this. A daemon with a policy for agent "calculator" must be
running:

    lightning-trainer serve --config examples/calculator/lightning.toml
    python examples/calculator/train.py --steps 26

`make quickstart` does both and shows what happens (`quickstart/`).
"""

import argparse
import json
import os
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent import solve, tool_first
from langchain.agents.middleware import AgentMiddleware
from tasks import Task, heldout_tasks, score, train_tasks

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import Curriculum, Event, Runner
from lightning_trainer.rollouts.attempt import as_json

TASKS_PER_STEP = 10
"""The policy's groups_per_step."""
WARMING_STEPS = 15
CANDIDATES = 40
"""How many tasks of a step a curriculum chooses from."""


def temperature_at(step: int) -> float:
    """Return the temperature of a training step's attempts: 0.6 at first, and 1.0 from the sixteenth step on.

    At 1.0 the model is right in 4 % of its first attempts, at 0.6 in a third, and a group in which no attempt is right
    teaches nothing. Neither does one in which all are: the surer the policy is, the more must be left to chance.
    """
    return 0.6 + 0.4 * min(1.0, (step - 1) / WARMING_STEPS)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A task of a training step."""

    task: Task
    temperature: float

    @property
    def id(self) -> str:
        return self.task.id


def tasks_of(step: int, seed: int, count: int) -> list[Sampled]:
    """Return a step's tasks. Seed and step determine them, so an interrupted run continues with the same ones."""
    return [Sampled(task, temperature_at(step)) for task in train_tasks(seed * 10_000 + step, count)]


def sample(one: Sampled, *, middleware: tuple[AgentMiddleware, ...] = ()) -> float:
    """Make one attempt in training: sampled, so that the attempts of a group differ."""
    return score(solve(one.task.question, temperature=one.temperature, middleware=middleware), one.task)


def answer(task: Task, *, middleware: tuple[AgentMiddleware, ...] = ()) -> float:
    """Make one attempt in an evaluation: the most likely answer."""
    return score(solve(task.question, temperature=0.0, middleware=middleware), task)


class EventLog:
    """Writes events as JSON lines, so that another process can show them."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("a", encoding="utf-8") if path else sys.stdout
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        self.write(as_json(event))

    def write(self, line: dict) -> None:
        with self._lock:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", default="calculator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=26)
    parser.add_argument("--heldout", type=int, default=96)
    parser.add_argument("--concurrency", type=int, default=70)
    parser.add_argument("--forced-tool", action="store_true", help="the first answer must be a call of the calculator")
    parser.add_argument(
        "--curriculum",
        action="store_true",
        help="choose half of a step's tasks by how uncertain their family's outcome is",
    )
    parser.add_argument("--events", type=Path, help="write events here instead of standard output")
    options = parser.parse_args()
    endpoint = os.environ.setdefault("LIGHTNING_ENDPOINT", "http://127.0.0.1:8321")
    os.environ.setdefault("OPENAI_BASE_URL", f"{endpoint}/v1")
    os.environ.setdefault("OPENAI_API_KEY", "not-needed-on-loopback")
    os.environ["OPENAI_MODEL"] = options.policy
    events = EventLog(options.events)
    held_out = heldout_tasks(options.heldout)
    middleware = (tool_first,) if options.forced_tool else ()

    def evaluate(stage: str) -> None:
        attempt = partial(answer, middleware=middleware)
        runner = Runner(options.policy, attempt, concurrency=options.concurrency, on_event=events)
        ended = runner.evaluate(held_out, stage=stage)
        successes = sum(attempt.reward == 1.0 for attempt in ended)
        families = {task.id: task.family for task in held_out}
        count = {"stage": stage, "successes": successes, "tasks": len(ended)}
        events.write({"event": "EvaluationEnded", **count, "families": families})

    try:
        attempt = partial(sample, middleware=middleware)
        by_family = Curriculum[Sampled](lambda one: one.task.family, seed=options.seed)
        curriculum = by_family if options.curriculum else None
        runner = Runner(
            options.policy, attempt, concurrency=options.concurrency, on_event=events, curriculum=curriculum
        )
        if not runner.steps_done():  # a run that continues has done this before
            evaluate("before")
        count = CANDIDATES if options.curriculum else TASKS_PER_STEP
        runner.train(partial(tasks_of, seed=options.seed, count=count), steps=options.steps)
        evaluate("after")
    except LightningError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
