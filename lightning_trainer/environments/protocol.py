"""The protocol: ``reset(task) -> observation`` and ``step(action) -> observation, reward, done``.

An action is a model's output, text and tool calls; an observation is the model's next input. Everything is JSON, so
that an environment may run in another interpreter, or be written in another language.

A task's id contains the environment with its options, the version of its rules, the split, and the seed: two attempts
with one task id start in the same state, which makes the attempts of a group comparable.

This module needs only the standard library: it is also imported in the interpreters of third-party environments.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from lightning_trainer.environments.errors import EnvironmentNonsenseError

TRAIN = "train"
HELD_OUT = "held-out"
SPLITS = (TRAIN, HELD_OUT)
_OWN_REWARD = "reward"
_HELD_OUT_SHARE = 4
"""One in this many tasks is held out; a digest of a task's content decides."""

T = TypeVar("T")


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """Its arguments as a JSON Schema."""


@dataclass(frozen=True)
class ToolCall:
    """A call that the model made. Arguments that were not a JSON object are under the key ``_unreadable``."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True)
class ToolResult:
    """The result of one call; ``id`` is the call's."""

    id: str
    text: str


@dataclass(frozen=True)
class Action:
    """The model's output in one turn."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Observation:
    """The model's next input."""

    text: str = ""
    tool_results: tuple[ToolResult, ...] = ()
    tools: tuple[Tool, ...] | None = None
    """The tools available from now on; None: no change."""
    instructions: str | None = None
    """The system message; only the first observation's counts."""
    state: str | None = None
    """Equal for equal states of the world: credit schemes may compare calls by it (docs/credit.md)."""
    images: tuple[str, ...] = ()
    """Pictures as ``data:`` URLs (``data:image/png;base64,...``), such as a screenshot."""


@dataclass(frozen=True)
class Step:
    """The result of one action."""

    observation: Observation
    reward: float | None
    """For this step only; None: nothing scored it, which is not the same as zero."""
    done: bool
    rewards: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Further rewards of this step by name; the attempt gets the sum of each over its steps."""


Stepped: TypeAlias = Step | tuple[Observation | str, float | None, bool]


@dataclass(frozen=True)
class Task:
    """The start of an attempt. ``id`` consists of the environment, its version, and the name, else split and seed."""

    environment: str
    """Name, variant and options, as in ``frozenlake:4x4?slippery=true``."""
    version: str
    """Version of the environment's rules: another version makes it another task."""
    split: str = TRAIN
    """``train`` or ``held-out``; an environment must not give both the same content."""
    seed: int = 0
    name: str | None = None
    """The name of a task from a file, in place of split and seed."""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The whole object, for a task from a file."""

    @property
    def id(self) -> str:
        return f"{self.environment}@{self.version}#{self.name or f'{self.split}-{self.seed}'}"

    @property
    def input(self) -> Mapping[str, Any] | None:
        """Return the input to record for the rollout: the whole object of a task from a file, else None."""
        return None if self.name is None else dict(self.fields)

    def random(self, *more: object) -> random.Random:
        """Return a random source that is the same in every attempt at this task; ``more`` selects among several."""
        start = (self.split, self.seed) if self.name is None else ("named", self.name)
        return random.Random("/".join(map(str, (self.environment, *start, *more))))

    def of_split(self, candidates: Any, content: Any = repr, *, patience: int = 10_000) -> Any:
        """Return the first candidate whose content belongs to this task's split.

        A digest of the content decides the split, so no content used in training is held out, whatever the seeds are.

        Args:
            candidates: generated one after the other, in an order that the seed determines.
            content: returns text that distinguishes a candidate from others.

        Raises:
            ValueError: none of ``patience`` candidates belongs to it.
        """
        for candidate, _ in zip(candidates, range(patience), strict=False):
            if is_held_out(content(candidate)) == (self.split == HELD_OUT):
                return candidate
        raise ValueError(f"none of {patience} candidates belongs to {self.split}; there are too few different ones")


def is_held_out(content: str) -> bool:
    """Whether a task with this content is held out: its digest decides, always and everywhere the same way."""
    return hashlib.sha256(content.encode(errors="surrogatepass")).digest()[0] % _HELD_OUT_SHARE == 0


def both_splits(contents: Iterable[str]) -> bool:
    """Whether some of the tasks with these contents are held out, and some are not."""
    found: set[bool] = set()
    return any(len(found) == 2 for content in contents if found.add(is_held_out(content)) is None)


def nothing_held_out(environment: str) -> str:
    """Return a sentence for readers of the score of an environment with ``holds_out = False``."""
    return (
        f"{environment} has too few different openings to hold any out: its held-out tasks start where training "
        "starts, so their score is not a held-out one"
    )


@runtime_checkable
class Environment(Protocol):
    """Any class with these two methods; it is created once and reset for every attempt.

    It may also have ``version`` (text; by default the digest of its file), ``size(split)`` (the number of tasks; by
    default one for every seed), ``holds_out`` (False: it has too few different openings to hold any out; by default
    True), and ``close()``, which is called when the environment is no longer used, unless its process is killed. The
    arguments of its constructor are the variant, if it takes one, and the options.
    """

    def reset(self, task: Task) -> Observation | str:
        """Start an attempt at a task, and return the first observation."""
        ...

    def step(self, action: Action) -> Stepped:
        """Take one action; return the observation, the reward of this step, and whether the attempt is done."""
        ...


def as_observation(value: object) -> Observation:
    """Return an observation. Raises EnvironmentNonsenseError: the value is neither text nor an observation."""
    if isinstance(value, str):
        return Observation(value)
    if isinstance(value, Observation):
        return value
    raise EnvironmentNonsenseError(
        f"the environment's observation is {_shown(value)}; it must be text or an Observation"
    )


def as_step(value: object) -> Step:
    """Return a step. Raises EnvironmentNonsenseError: the value is not an observation, a reward, and a done flag."""
    named: object = {}
    if isinstance(value, Step):
        value, named = (value.observation, value.reward, value.done), value.rewards
    if not isinstance(value, tuple | list) or len(value) != 3:
        raise EnvironmentNonsenseError(
            f"step() returned {_shown(value)}; it must be three: observation, reward and whether the attempt is done"
        )
    observation, reward, done = value
    if type(done).__name__ not in ("bool", "bool_"):  # bool_ is numpy's
        raise EnvironmentNonsenseError(f"step() says that done is {_shown(done)}; it must be True or False")
    return Step(as_observation(observation), as_reward(reward), bool(done), _named_rewards(named))


def _named_rewards(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise EnvironmentNonsenseError(
            f"step() says that the rewards by name are {_shown(value)}; they must be an object of numbers"
        )
    rewards: dict[str, float] = {}
    for name, given in value.items():
        if not isinstance(name, str) or name in ("", _OWN_REWARD):
            raise EnvironmentNonsenseError(
                f"step() names a reward {_shown(name)}; a name is text, and {_OWN_REWARD!r} is the name of the step's "
                "own reward"
            )
        if (number := as_reward(given)) is not None:
            rewards[name] = number
    return rewards


def as_reward(value: object) -> float | None:
    """Return a reward. Raises EnvironmentNonsenseError: the value is not a finite number."""
    if value is None:
        return None
    try:
        number = float(value) if not isinstance(value, str | bytes) else math.nan  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise EnvironmentNonsenseError(f"step() says that the reward is {_shown(value)}; it must be a number, or None")
    return number


def to_json(value: Task | Action | Observation | Step) -> dict[str, Any]:
    """Convert to JSON-able values."""
    return asdict(value)


def task_from_json(value: Mapping[str, Any]) -> Task:
    """Read a task."""
    return Task(**value)


def action_from_json(value: Mapping[str, Any]) -> Action:
    """Read an action."""
    return Action(value["text"], tuple(ToolCall(**call) for call in value["tool_calls"]))


def observation_from_json(value: object) -> Observation:
    """Read an observation. Raises EnvironmentNonsenseError: it is not one."""
    if isinstance(value, str):
        return Observation(value)
    try:
        assert isinstance(value, Mapping)
        tools = value.get("tools")
        return Observation(
            text=_text(value.get("text", "")),
            tool_results=tuple(
                ToolResult(_text(result["id"]), _text(result["text"])) for result in value.get("tool_results") or ()
            ),
            tools=None if tools is None else tuple(_tool(tool) for tool in tools),
            instructions=_optional_text(value.get("instructions")),
            state=_optional_text(value.get("state")),
            images=tuple(_picture(image) for image in value.get("images") or ()),
        )
    except (AssertionError, KeyError, TypeError) as error:
        raise EnvironmentNonsenseError(
            f"the environment's observation is {_shown(value)}, which the protocol does not have ({error})"
        ) from None


def step_from_json(value: Mapping[str, Any]) -> Step:
    """Read a step. Raises EnvironmentNonsenseError: it is not one."""
    missing = {"observation", "reward", "done"} - set(value)
    if missing:
        raise EnvironmentNonsenseError(f"the environment's answer {_shown(value)} lacks {', '.join(sorted(missing))}")
    observation = observation_from_json(value["observation"])
    return as_step(Step(observation, value["reward"], value["done"], value.get("rewards", {})))


def _tool(value: Mapping[str, Any]) -> Tool:
    parameters = value.get("parameters") or {"type": "object", "properties": {}}
    assert isinstance(parameters, Mapping), "a tool's parameters are a JSON Schema"
    return Tool(_text(value["name"]), _text(value.get("description") or ""), dict(parameters))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_shown(value)} is not text")
    return value


def _picture(value: object) -> str:
    text = _text(value)
    assert text.startswith("data:image/"), f"the picture {_shown(text[:40])} is not a data: URL of an image"
    return text


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _shown(value: object) -> str:
    """Return the beginning of the value's ``repr``, which runs the environment's code and may fail."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def tools_for_openai(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return the tools in the format of OpenAI's ``tools`` field."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in tools
    ]
