"""A function that scores an answer, as an environment of one turn: ``rewards.py:compute_score``, tasks from a file.

The names of the function's parameters decide what it is given; they are those of verl (``solution_str``,
``ground_truth``), TRL (``completions``, and columns), and OpenAI's graders (``sample``, ``item``). This module needs
only the standard library.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from lightning_trainer.environments.errors import EnvironmentNonsenseError
from lightning_trainer.environments.loading import digest_of
from lightning_trainer.environments.protocol import Action, Observation, Step, Task, as_reward
from lightning_trainer.environments.task_fields import PROMPTS, Prompt, observation_of, prompt_of, truth_of

_OF_TRL = frozenset({"completions", "prompts"})
_ANSWERS = ("solution_str", "completions", "sample")
"""The parameters that stand for the model's answer: verl's, TRL's, OpenAI's."""


class Score(NamedTuple):
    """A function's verdict on an answer."""

    value: float | None
    """None: the function did not score the answer."""
    others: Mapping[str, float]
    """Further numbers by name."""
    reason: str


def takes_answer(function: Any) -> bool:
    """Whether it is a function that takes a model's answer under one of the known names."""
    return inspect.isfunction(function) and not _parameters(function).keys().isdisjoint(_ANSWERS)


def score(
    function: Callable[..., Any],
    fields: Mapping[str, Any],
    prompt: Prompt,
    answer: str,
    options: Mapping[str, Any] | None = None,
) -> Score:
    """Call a reward function with the values that its parameters name, and return its verdict.

    Args:
        fields: the task, a row of a dataset.
        prompt: the question; if it is messages, TRL's completions are messages, too.
        options: further arguments, such as verl's ``reward_kwargs``.

    Raises:
        ValueError: the task lacks a field that a parameter names, or the function did not return a reward.
    """
    name = function.__name__
    returned = function(**_arguments(function, fields, prompt, answer, options or {}))
    if inspect.isawaitable(returned):
        with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
            returned = thread.submit(asyncio.run, _result(returned)).result()
    said = returned
    if _is_trls(function):
        try:
            (said,) = returned
        except (TypeError, ValueError):
            raise ValueError(f"{name} returned {_shown(returned)}; of one completion it returns one reward") from None
    others: Mapping[str, Any] = {}
    if isinstance(said, Mapping):
        if "score" not in said:
            raise ValueError(f"{name} returned {_shown(said)}; an object has the reward as its 'score'")
        said, others = said["score"], said
    try:
        value = as_reward(said)
    except EnvironmentNonsenseError:
        raise ValueError(
            f"{name} returned {_shown(returned)}; a reward is a number, None, or an object with a 'score'"
        ) from None
    return Score(value, _numbers(others), str(others.get("reason") or ""))


class RewardFunction:
    """An environment of one turn: the task's prompt, then the function's score of the answer.

    Args:
        function: takes the answer under one of the known names.
        options: further arguments of the function.

    Raises:
        TypeError: the function does not take the answer, or does not take one of the options.
    """

    def __init__(self, function: Callable[..., Any], /, **options: Any) -> None:
        parameters = _parameters(function)
        if not takes_answer(function):
            raise TypeError(
                f"{function.__name__} takes ({', '.join(parameters)}); a reward function takes the model's answer as "
                f"one of {', '.join(_ANSWERS)}, and any other environment is a class"
            )
        if not _takes_all(function) and (unknown := options.keys() - parameters.keys()):
            raise TypeError(f"{function.__name__} takes ({', '.join(parameters)}), and not {', '.join(unknown)}")
        self._function = function
        self._options = options
        source = getattr(sys.modules.get(function.__module__), "__file__", None)
        self.version = digest_of(Path(source)) if source else "0"

    def size(self, split: str) -> int:
        return 0  # it makes no tasks of its own: all are given

    def reset(self, task: Task) -> Observation:
        self._fields = task.fields
        asked = prompt_of(task.fields)
        if asked is None:
            raise ValueError(
                f"the task has none of {', '.join(PROMPTS)}; it has ({', '.join(task.fields)}), and tasks of a reward "
                "function come from a file (--tasks)"
            )
        self._prompt = asked
        return observation_of(asked)

    def step(self, action: Action) -> Step:
        said = score(self._function, self._fields, self._prompt, action.text, self._options)
        return Step(Observation(), said.value, True, said.others)


def _arguments(
    function: Callable[..., Any], fields: Mapping[str, Any], prompt: Prompt, answer: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    parameters = _parameters(function)
    known = dict(fields)
    if (truth := truth_of(fields)) is not None:
        known["ground_truth"] = truth
    if _is_trls(function):
        said = answer if isinstance(prompt, str) else [{"role": "assistant", "content": answer}]
        known.pop("prompt", None)
        known = {name: [value] for name, value in known.items()} | {"prompts": [prompt], "completions": [said]}
    else:
        sample = {"output_text": answer, "output_json": _json(answer)}
        known = {"extra_info": {}, **known, "solution_str": answer, "sample": sample, "item": dict(fields)}
    passed = known if _is_trls(function) and _takes_all(function) else parameters.keys() & known.keys()
    arguments = {name: known[name] for name in passed} | dict(options)
    missing = [
        one.name
        for one in parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        if one.name not in arguments
    ]
    if missing:
        raise ValueError(
            f"{function.__name__} takes {', '.join(missing)}, which the task does not have; it has "
            f"({', '.join(fields)})"
        )
    return arguments


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    if sys.version_info >= (3, 14):  # annotations are evaluated when read, and may use names that are not imported
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.STRING).parameters
    return inspect.signature(function).parameters


def _is_trls(function: Callable[..., Any]) -> bool:
    """Whether the function is TRL's kind: it scores several completions at once, and columns are lists."""
    return not _parameters(function).keys().isdisjoint(_OF_TRL)


def _takes_all(function: Callable[..., Any]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in _parameters(function).values())


async def _result(awaitable: Any) -> Any:
    return await awaitable


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _numbers(said: Mapping[str, Any]) -> dict[str, float]:
    """Return the other numbers in an object by name, without ``reward``, which is the name of the score itself."""
    return {
        name: float(value)
        for name, value in said.items()
        if name not in ("score", "reward", "") and isinstance(value, Real) and math.isfinite(value)
    }


def _shown(value: object) -> str:
    return repr(value)[:200]
