"""Gymnasium's FrozenLake in text: a new map for every task, with the map and the moves as text.

RAGEN (Wang et al. 2025, arXiv 2504.20073) trains on the same game. Training and held-out tasks have different maps.
"""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from typing import Any

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from lightning_trainer.environments.protocol import Action, Observation, Step, Task

_MOVES = ("left", "down", "right", "up")
"""Gymnasium's actions 0 to 3."""
_MOVE = re.compile(r"\b(left|down|right|up)\b", re.IGNORECASE)
_INSTRUCTIONS = (
    "You are P on a frozen lake. Reach G; do not step into a hole (O). Answer with one word: up, down, left or right."
)


class FrozenLake:
    """FrozenLake as text.

    Args:
        size: ``4x4``, or any from ``2x2`` to ``8x8``.
        slippery: two of three moves slip in another direction.
        frozen: probability that a tile is not a hole.
        max_turns: after this many turns the attempt is lost.
    """

    version = f"1-gymnasium-{version_of('gymnasium')}"

    def __init__(self, size: str = "4x4", *, slippery: bool = False, frozen: float = 0.8, max_turns: int = 12) -> None:
        match = re.fullmatch(r"([2-8])x\1", str(size))
        if match is None:
            raise ValueError(f"the lake's size is {size!r}; it must be 2x2 to 8x8, as in frozenlake:4x4")
        self._size = int(match[1])
        self._slippery = bool(slippery)
        self._frozen = frozen
        self._max_turns = max_turns

    def reset(self, task: Task) -> Observation:
        candidates = (
            generate_random_map(self._size, self._frozen, seed=task.random(number).randrange(2**31))
            for number in range(10_000)
        )
        self._map = task.of_split(candidates, "/".join)
        self._world: Any = gymnasium.make("FrozenLake-v1", desc=self._map, is_slippery=self._slippery)
        self._place, _ = self._world.reset(seed=task.random("ice").randrange(2**31))
        self._turns = 0
        return Observation(self._drawn(), instructions=_INSTRUCTIONS, state=self._state())

    def step(self, action: Action) -> Step:
        self._turns += 1
        named = _MOVE.findall(action.text)
        reward, ended, said = 0.0, False, "That is not a move. "
        if named:
            before = self._place
            self._place, earned, ended, _, _ = self._world.step(_MOVES.index(named[-1].lower()))
            reward, said = float(earned), "" if self._place != before else "You bumped into the edge. "
        if ended:
            text = "You reached G." if reward else "You fell into a hole."
            return Step(Observation(text), reward, True)
        over = self._turns >= self._max_turns
        return Step(
            Observation(said + ("Too many moves." if over else self._drawn()), state=self._state()), reward, over
        )

    def _drawn(self) -> str:
        rows = [["_" if field in "SF" else "O" if field == "H" else "G" for field in row] for row in self._map]
        row, column = divmod(int(self._place), self._size)
        rows[row][column] = "P"
        return "\n".join(" ".join(row) for row in rows)

    def _state(self) -> str:
        return f"{'/'.join(self._map)} at {int(self._place)}"
