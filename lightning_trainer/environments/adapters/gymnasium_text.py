"""Any Gymnasium environment with discrete actions, as text: ``gymnasium:Taxi-v4``, ``gymnasium:my_envs:My-v0``.

The observation is the text rendering (``render_mode="ansi"``) if there is one; otherwise it is the numbers. A task's
first observation decides whether it is held out. Source: Gymnasium's API (https://gymnasium.farama.org/api/env/).
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

from lightning_trainer.environments.loading import digest_of
from lightning_trainer.environments.protocol import Action, Observation, Step, Task, both_splits

_NAMES = {
    "Taxi-v4": ("south", "north", "east", "west", "pickup", "dropoff"),
    "CliffWalking-v1": ("up", "right", "down", "left"),
    "Blackjack-v1": ("stick", "hit"),
}
"""Action names of the toy-text environments; actions of other environments are numbers."""
_LOOKED_AT = 64
"""How many openings are searched for one of each split."""
_COLOR = re.compile(r"\x1b\[([0-9;]*)m")
_COLORS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
"""Gymnasium's names of the codes 30 to 37, and 40 to 47 for the background."""


class GymnasiumText:
    """A Gymnasium environment as text.

    Args:
        name: as for ``gymnasium.make``; after the name of the module that registers it and a colon, unless an
            installed plugin registers it.
        max_turns: after this many turns the attempt ends, if the environment has not ended it.
        options: for ``gymnasium.make``.
    """

    version = f"2-gymnasium-{version_of('gymnasium')}"

    def __init__(self, name: str, *, max_turns: int = 100, **options: Any) -> None:
        module, _, name = name.rpartition(":")
        if module:
            importlib.import_module(module)
        made = _maker_of(gymnasium.spec(name))
        if module:  # a change of the environment's own code makes another version, too
            self.version = f"{self.version}-{digest_of(Path(inspect.getfile(made)))}"
        modes = getattr(made, "metadata", {}).get("render_modes", ())
        self._drawn = "ansi" in modes
        self._world: Any = gymnasium.make(name, render_mode="ansi" if self._drawn else None, **options)
        if not isinstance(self._world.action_space, spaces.Discrete):
            raise ValueError(
                f"{name} takes actions of {self._world.action_space}; only environments with discrete actions can be "
                "played in text"
            )
        count = int(self._world.action_space.n)
        self._names = _NAMES.get(name) or tuple(map(str, range(count)))
        self._instructions = f"Answer with one action: {', '.join(self._names)}."
        self._named = re.compile(rf"\b({'|'.join(map(re.escape, self._names))})\b", re.IGNORECASE)
        self._max_turns = max_turns
        self.holds_out = both_splits(map(_content, map(self._opening, range(_LOOKED_AT))))

    def reset(self, task: Task) -> Observation:
        openings = (self._opening(task.random(number).randrange(2**31)) for number in itertools.count())
        self._turns = 0
        return task.of_split(openings, _content) if self.holds_out else next(openings)

    def step(self, action: Action) -> Step:
        self._turns += 1
        over = self._turns >= self._max_turns
        named = self._named.findall(action.text)
        if not named:
            return Step(Observation(f"That is not an action. {self._instructions}"), 0.0, over)
        seen, reward, terminated, truncated, _ = self._world.step(self._names.index(named[-1].lower()))
        return Step(self._observation(seen), float(reward), bool(terminated or truncated or over))

    def close(self) -> None:
        self._world.close()

    def _opening(self, seed: int) -> Observation:
        seen, _ = self._world.reset(seed=seed)
        return self._observation(seen, self._instructions)

    def _observation(self, seen: Any, instructions: str | None = None) -> Observation:
        text = _in_words(self._world.render()) if self._drawn else _plain(seen)
        return Observation(text, instructions=instructions, state=_plain(seen))


def _content(opening: Observation) -> str:
    return f"{opening.text}\n{opening.state}"


def _in_words(drawing: str) -> str:
    """Return a drawing without color codes, with a line for each colored place: Taxi's cab is only a color."""
    lines: list[str] = []
    marks: list[str] = []
    for row, line in enumerate(drawing.splitlines(), start=1):
        plain, *rest = _COLOR.split(line)
        colors: list[str] = []
        for codes, piece in zip(rest[::2], rest[1::2], strict=True):
            found = [int(code) for code in codes.split(";") if code[:1] in ("3", "4") and len(code) == 2]
            colors = [*colors, *(_COLORS[code % 10] for code in found if code % 10 < len(_COLORS))] if found else []
            if piece:
                marks += [f"{color}: row {row}, column {len(plain) + 1}" for color in colors]
            plain += piece
        lines.append(plain)
    return "\n".join([*lines, *marks])


def _maker_of(spec: Any) -> Any:
    """Return the environment's class, or the function that makes it."""
    entry_point = spec.entry_point
    return gymnasium.envs.registration.load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _plain(seen: Any) -> str:
    return str(seen.tolist() if hasattr(seen, "tolist") else seen)
