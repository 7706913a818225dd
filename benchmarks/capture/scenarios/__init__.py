"""One framework per file: ``SCENARIO`` says how one rollout runs in each of the framework's modes.

The engine recognizes a call by the text of its messages: ``AGENT[name]`` in the system message, ``ROLLOUT[id]`` in any.
The call's span has to have that agent's name.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

MODEL = "m"
KEY = "unused"


@dataclass(frozen=True, slots=True)
class Task:
    """One rollout's task."""

    engine: str
    """Base URL of the engine, without ``/v1``."""
    rollout: str

    @property
    def base_url(self) -> str:
        return f"{self.engine}/v1"

    def instructions(self, agent: str) -> str:
        return f"You are AGENT[{agent}]. Be brief."

    @property
    def question(self) -> str:
        return f"What is the weather in Paris? ROLLOUT[{self.rollout}]"

    def messages(self, agent: str) -> list[Any]:
        return [
            {"role": "system", "content": self.instructions(agent)},
            {"role": "user", "content": self.question},
        ]


Play = Callable[[Task], None]
AsyncPlay = Callable[[Task], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One framework's rollout, by mode; None: it has no such mode. ``stream`` may be either kind of function."""

    sync: Play | None = None
    asynchronous: AsyncPlay | None = None
    stream: Play | AsyncPlay | None = None

    def modes(self) -> dict[str, Play | AsyncPlay]:
        named = {"sync": self.sync, "async": self.asynchronous, "stream": self.stream}
        return {name: play for name, play in named.items() if play is not None}


def names() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__))


def load(name: str) -> Scenario:
    """Return the scenario of this name.

    Raises:
        ImportError: the framework is not installed.
    """
    scenario: Scenario = import_module(f"{__name__}.{name}").SCENARIO
    return scenario
