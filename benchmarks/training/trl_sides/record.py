"""What both sides are told and what they record: a folder, so that an interrupted run continues where it stopped.

Imports only the standard library, since TRL's environment imports it too.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Plan:
    model_dir: str
    examples_dir: str
    """Holds ``tasks.py``, where tasks and their score come from."""
    before_question: list[dict[str, Any]]
    """The messages, as chat templates take them, that the agent puts before a question."""
    run_steps: int
    """Steps to make that no interruption divides; fewer if the target is reached or the schedule ends first."""
    target: float | None = None
    """Success on held-out tasks at which a side is done; None: nothing is evaluated."""
    enough_s: float | None = None
    """Wall-clock of training after which a side that has not reached the target may stop: it is behind for certain."""
    step_limit_cpu_s: float | None = None
    """CPU time after which a step is ended, and counts as one that takes at least so long."""
    evaluate_every: int = 2
    held_out: int = 96
    groups: int = 8
    size: int = 8
    """64 samples a step."""
    schedule_steps: int = 26
    """Length of the learning rate's schedule, however many steps are made."""
    lr: float = 5e-5
    dtype: str = "bfloat16"
    """Of matrix products and of the weights that tokens are drawn with: what is fastest on this processor for ours."""
    micro_batch: int = 4
    """Samples in one of TRL's passes; ours counts tokens."""
    min_lr_ratio: float = 0.1
    call_tokens: int = 48
    """Longest answer of one model call."""


@dataclass(frozen=True, slots=True)
class Step:
    step: int
    seconds: float
    cpu_s: float
    """Of all processes of the side."""
    reward: float
    load: float
    """Load average of the machine over the minute before the step's end."""
    partial: bool = False
    """Begun by a process that was interrupted: its time is not that of a whole step."""
    unfinished: bool = False
    """Ended at the plan's limit: the step takes longer than this."""


class Record:
    """``plan.json``, and ``steps.jsonl`` with a line for each step and each evaluation."""

    def __init__(self, folder: Path) -> None:
        self._lines = folder / "steps.jsonl"
        self.plan = Plan(**json.loads((folder / "plan.json").read_text()))
        self.steps: list[Step] = []
        self.held_out: dict[int, float] = {}
        for line in self._lines.read_text().splitlines() if self._lines.exists() else []:
            self._take(json.loads(line))

    def step(self, step: Step) -> None:
        self._write(asdict(step))

    def evaluated(self, step: int, success: float) -> None:
        self._write({"step": step, "held_out": success})

    def _write(self, line: dict[str, Any]) -> None:
        self._take(line)
        with self._lines.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _take(self, line: dict[str, Any]) -> None:
        if "held_out" in line:
            self.held_out[line["step"]] = line["held_out"]
        elif all(step.step != line["step"] for step in self.steps):  # a step made twice counts once
            self.steps.append(Step(**line))

    @property
    def done(self) -> bool:
        made = len(self.whole_steps) >= self.plan.run_steps or len(self.steps) >= self.plan.schedule_steps
        return made or self.reached_at is not None or self._is_behind()

    def _is_behind(self) -> bool:
        enough_s = self.plan.enough_s
        return enough_s is not None and bool(self.whole_steps) and self.seconds_until(len(self.steps)) >= enough_s

    @property
    def reached_at(self) -> int | None:
        """The first step after which held-out success was at the target."""
        if self.plan.target is None:
            return None
        return min((step for step, success in self.held_out.items() if success >= self.plan.target), default=None)

    def last_reward(self, steps: int) -> float:
        """Return the mean reward of the last ``steps`` steps."""
        return statistics.fmean(step.reward for step in self.steps[-steps:])

    def median(self, of: Callable[[Step], float]) -> float:
        return statistics.median(of(step) for step in self.whole_steps)

    @property
    def whole_steps(self) -> list[Step]:
        return [step for step in self.steps if not step.partial]

    def seconds_until(self, last: int) -> float:
        """Return the seconds of training alone, without evaluations; an interrupted step counts as the median one."""
        median = self.median(lambda step: step.seconds)
        return sum(median if step.partial else step.seconds for step in self.steps if step.step <= last)


class Watch:
    """Wall-clock and CPU time of one step."""

    def __init__(self, cpu_s: Callable[[], float]) -> None:
        self._cpu = cpu_s
        self._began, self._cpu_began = time.monotonic(), cpu_s()

    @property
    def cpu_s(self) -> float:
        return self._cpu() - self._cpu_began

    def ended(self, step: int, reward: float, *, partial: bool = False, unfinished: bool = False) -> Step:
        seconds = time.monotonic() - self._began
        return Step(step, seconds, self.cpu_s, reward, os.getloadavg()[0], partial, unfinished)
