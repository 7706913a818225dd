"""One attempt at a task from an agent's point of view: observations, tools, and rewards."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Mapping
from typing import Any, Protocol

from lightning_trainer.environments.errors import EnvironmentTimeoutError
from lightning_trainer.environments.protocol import (
    SPLITS,
    Action,
    Environment,
    Observation,
    Step,
    Task,
    Tool,
    ToolCall,
    as_observation,
    as_step,
)

_log = logging.getLogger(__name__)


class Playable(Protocol):
    """An environment whose answers are already validated: in this process or behind a pipe."""

    def reset(self, task: Task) -> Observation: ...

    def step(self, action: Action) -> Step: ...


class InProcess:
    """An environment object in this process. There are no limits: if it hangs, its attempt hangs."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def reset(self, task: Task) -> Observation:
        return as_observation(self._environment.reset(task))

    def step(self, action: Action) -> Step:
        return as_step(self._environment.step(action))

    def sizes(self) -> dict[str, int] | None:
        """Return the number of tasks of each split; None if the environment does not say."""
        size: Any = getattr(self._environment, "size", None)
        return {split: operator.index(size(split)) for split in SPLITS} if callable(size) else None  # pyright: ignore

    def holds_out(self) -> bool:
        """Whether the environment keeps some openings for held-out tasks alone."""
        return bool(getattr(self._environment, "holds_out", True))

    def close(self) -> None:
        """Close the environment, if it has a ``close``; an error in that changes nothing about the attempt."""
        close = getattr(self._environment, "close", None)
        if not callable(close):
            return
        try:
            close()
        except Exception as error:
            _log.warning(
                "the environment %s failed in close: %s: %s",
                type(self._environment).__qualname__,
                type(error).__name__,
                error,
            )


class Session:
    """An agent's interface: ``observation``, ``tools``, ``done``, and ``step``, ``say``, or ``call`` to act."""

    def __init__(self, environment: Playable, task: Task, *, timeout_s: float = float("inf")) -> None:
        self._environment = environment
        self._give_up = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self.task = task
        self.observation = environment.reset(task)
        self.tools: tuple[Tool, ...] = self.observation.tools or ()
        self.turns = 0
        self.done = False
        self.rewards: list[float | None] = []
        """One per step, in order."""
        self.named_rewards: dict[str, float] = {}
        """For each reward that has a name of its own, the sum over the steps."""
        self.failure: Exception | None = None
        """The exception that ended the attempt, even if the agent handled it."""

    @property
    def reward(self) -> float | None:
        """Return the sum of the steps' rewards; None if nothing scored any of them."""
        scored = [reward for reward in self.rewards if reward is not None]
        return sum(scored) if scored else None

    @property
    def left_s(self) -> float:
        """Return the remaining time of the attempt, in seconds."""
        return self._give_up - time.monotonic()

    @property
    def too_late(self) -> EnvironmentTimeoutError:
        """Return the error of an attempt that has no time left."""
        return EnvironmentTimeoutError(
            f"the attempt did not end within {self._timeout_s:g} s; it had {self.turns} turns"
        )

    def step(self, action: Action) -> Observation:
        """Act, and return the environment's answer.

        Raises:
            EnvironmentFailedError: the environment failed, or the attempt's time is over.
            RuntimeError: the attempt is done.
        """
        if self.done:
            raise RuntimeError(f"the task {self.task.id} is done; look at session.done before another step")
        if self.left_s <= 0:
            self.failure = self.too_late
        if self.failure is not None:
            raise self.failure
        try:
            stepped = self._environment.step(action)
        except Exception as error:  # from an environment in our process, its own exception
            self.failure = error
            raise
        self.turns += 1
        self.rewards.append(stepped.reward)
        for name, reward in stepped.rewards.items():
            self.named_rewards[name] = self.named_rewards.get(name, 0.0) + reward
        self.done = stepped.done
        self.observation = stepped.observation
        if stepped.observation.tools is not None:
            self.tools = stepped.observation.tools
        return stepped.observation

    def say(self, text: str) -> str:
        """Act with text, and return the next observation's text."""
        return self.step(Action(text)).text

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call one tool, and return its result."""
        observation = self.step(Action(tool_calls=(ToolCall(name, arguments, "call"),)))
        return observation.tool_results[0].text if observation.tool_results else observation.text
