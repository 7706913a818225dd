"""One attempt: the agent's code under a rollout, with a time limit; whatever it raises is data, not a crash."""

import contextvars
import math
import threading
import time
import uuid
from collections.abc import Callable
from typing import Protocol, TypeVar

import lightning_instrumentation as lightning

from lightning_trainer.rollouts.events import AttemptEnded


class Task(Protocol):
    """Anything with an id that is unique among the tasks of a run."""

    @property
    def id(self) -> str: ...


TaskT = TypeVar("TaskT", bound=Task)


def run_attempt(
    attempt: Callable[[TaskT], float | None],
    task: TaskT,
    *,
    stage: str,
    step: int | None,
    group_id: str,
    mode: str,
    timeout_s: float,
    may_retry: bool = False,
) -> AttemptEnded:
    """Run ``attempt(task)`` as one rollout; the number it returns is recorded as its reward.

    One that raises while it ``may_retry`` is recorded as retried: the caller makes another one in its place.
    """
    began = time.monotonic()
    # One name for both: calls that come by a rollout's URL name no attempt beside it.
    name = uuid.uuid4().hex
    reward: float | None = None
    error: str | None = None
    try:
        with lightning.rollout(task.id, group_id=group_id, rollout_id=name, attempt_id=name, mode=mode) as rollout:
            try:
                reward = _within(lambda: attempt(task), timeout_s)
            except Exception:
                if may_retry:
                    rollout.retried()
                    stage = "retried"
                raise
            if reward is not None:
                lightning.reward(reward)  # what is not a finite number is recorded as missing
                if not math.isfinite(reward):
                    reward, error = None, f"the reward is {reward}; it must be a finite number, or None"
    except Exception as raised:  # the attempt boundary: a failed attempt is data
        error = f"{type(raised).__name__}: {raised}"
    return AttemptEnded(stage, step, task.id, reward, time.monotonic() - began, error)


def _within(function: Callable[[], float | None], timeout_s: float) -> float | None:
    """Call in a thread of its own and give up after the limit; Python cannot stop the thread, so it is left behind."""
    outcome: list[float | None] = []
    failure: list[BaseException] = []

    def call() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(call,), daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TimeoutError(f"the attempt did not end within {timeout_s:g} s")
    if failure:
        raise failure[0]
    return outcome[0]
