"""gym-sokoban's rooms in text: push every box onto a target.

Only the package's room generator is used; the rules are the few lines below, because the package's environment needs
the old Gym, which fails with a current NumPy. RAGEN (arXiv 2504.20073) trains on the same rooms.
"""

from __future__ import annotations

import random
import re
from importlib.metadata import version as version_of

import numpy
from gym_sokoban.envs.room_utils import generate_room

from lightning_trainer.environments.protocol import Action, Observation, Step, Task

_MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
_MOVE = re.compile(r"\b(up|down|left|right)\b", re.IGNORECASE)
_WALL, _FLOOR, _TARGET, _BOX_ON_TARGET, _BOX, _PLAYER = range(6)
_INSTRUCTIONS = (
    "You are P. Push every box X onto a target O; you cannot pull. # is a wall, _ is floor, * is a box on its target. "
    "Answer with one word: up, down, left or right."
)


class Sokoban:
    """Sokoban as text.

    Args:
        size: the room's size with its walls, as in ``6x6``.
        boxes: number of boxes.
        max_turns: after this many turns the attempt is lost.
    """

    version = f"1-gym-sokoban-{version_of('gym-sokoban')}"

    def __init__(self, size: str = "6x6", *, boxes: int = 1, max_turns: int = 20) -> None:
        match = re.fullmatch(r"(\d{1,2})x(\d{1,2})", size)
        if match is None or not all(5 <= int(number) <= 13 for number in match.groups()):
            raise ValueError(f"the room's size is {size!r}; it must be 5x5 to 13x13, as in sokoban:6x6")
        self._size = (int(match[1]), int(match[2]))
        self._boxes = boxes
        self._max_turns = max_turns

    def reset(self, task: Task) -> Observation:
        rooms = (self._room(task.random(number).randrange(2**31)) for number in range(10_000))
        self._fixed, self._room_now = task.of_split(
            (room for room in rooms if room is not None), lambda room: str([part.tolist() for part in room])
        )
        self._turns = 0
        return Observation(self._drawn(), instructions=_INSTRUCTIONS, state=self._drawn())

    def step(self, action: Action) -> Step:
        self._turns += 1
        named = _MOVE.findall(action.text)
        said = "" if named else "That is not a move. "
        if named and not self._moved(*_MOVES[named[-1].lower()]):
            said = "You cannot go there. "
        solved = not (self._room_now == _BOX).any()
        over = self._turns >= self._max_turns
        text = "Solved." if solved else said + ("Too many moves." if over else self._drawn())
        return Step(Observation(text, state=self._drawn()), 1.0 if solved else 0.0, solved or over)

    def _room(self, seed: int) -> tuple[numpy.ndarray, numpy.ndarray] | None:
        random.seed(seed)
        numpy.random.seed(seed)
        try:
            fixed, now, _ = generate_room(dim=self._size, num_steps=15, num_boxes=self._boxes)
        except (RuntimeError, RuntimeWarning):  # the generator fails for some seeds
            return None
        return (fixed, now) if (now == _BOX).any() else None

    def _moved(self, down: int, right: int) -> bool:
        ((row, column),) = numpy.argwhere(self._room_now == _PLAYER)
        to, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
        if self._room_now[to] in (_BOX, _BOX_ON_TARGET):
            if self._room_now[beyond] not in (_FLOOR, _TARGET):
                return False
            self._room_now[beyond] = _BOX_ON_TARGET if self._fixed[beyond] == _TARGET else _BOX
        elif self._room_now[to] == _WALL:
            return False
        self._room_now[to] = _PLAYER
        self._room_now[row, column] = self._fixed[row, column]
        return True

    def _drawn(self) -> str:
        return "\n".join(" ".join("#_O*XP"[field] for field in row) for row in self._room_now)
