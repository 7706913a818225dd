"""TextWorld's generated text adventures: ``textworld:coin_collector?level=3``, ``textworld:simple``.

A game takes seconds to compile, so it is compiled once and kept in the user's cache. Source: Cote et al. 2018, arXiv
1806.11532; https://github.com/microsoft/TextWorld.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import textworld
from textworld import challenges
from textworld.generator import compile_game

from lightning_trainer.environments.protocol import HELD_OUT, Action, Observation, Step, Task

_DEFAULTS: dict[str, dict[str, Any]] = {
    "coin_collector": {"level": 3},
    "treasure_hunter": {"level": 3},
    "simple": {"rewards": "dense", "goal": "detailed", "test": False},
}


class TextWorld:
    """A TextWorld game.

    Args:
        challenge: ``coin_collector``, ``treasure_hunter`` or ``simple``.
        max_turns: after this many turns the attempt ends.
        hints: list the possible commands with each observation.
        settings: the challenge's settings, such as ``level=5``.
    """

    version = f"1-textworld-{version_of('textworld')}"

    def __init__(
        self, challenge: str = "coin_collector", *, max_turns: int = 20, hints: bool = False, **settings: Any
    ) -> None:
        if challenge not in _DEFAULTS:
            raise ValueError(f"there is no challenge {challenge!r}; there are {', '.join(_DEFAULTS)}")
        self._challenge = challenge
        self._settings = {**_DEFAULTS[challenge], **settings}
        self._max_turns = max_turns
        self._hints = hints

    def reset(self, task: Task) -> Observation:
        game = self._compiled(2 * task.seed + (task.split == HELD_OUT))
        wanted = textworld.EnvInfos(
            admissible_commands=True, won=True, lost=True, description=True, objective=True, location=True,
            inventory=True, max_score=True,
        )  # fmt: skip
        self._world = textworld.start(str(game), wanted)
        self._seen = self._world.reset()
        self._score = 0
        self._turns = 0
        text = f"{self._seen.objective}\n\n{str(self._seen.description).strip()}{self._possible()}"
        return Observation(text, instructions="Answer with one command, such as: go north", state=self._state())

    def step(self, action: Action) -> Step:
        self._turns += 1
        lines = [line.strip("> ").strip() for line in action.text.splitlines() if line.strip("> ").strip()]
        self._seen, score, done = self._world.step(lines[-1] if lines else "look")
        # The score is the game's total; a step earns the increase.
        earned, self._score = score - self._score, score
        over = bool(done) or self._turns >= self._max_turns
        text = str(self._seen.feedback).partition("\n>")[0].strip()
        best = max(1, int(self._seen.max_score or 1))
        observation = Observation(text if over else text + self._possible(), state=self._state())
        return Step(observation, earned / best, over)

    def _possible(self) -> str:
        return f"\n\nPossible: {', '.join(self._seen.admissible_commands)}" if self._hints else ""

    def _state(self) -> str:
        return f"{self._seen.location} {self._seen.inventory}"

    def _compiled(self, seed: int) -> Path:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning-trainer" / "textworld"
        digest = hashlib.sha256(repr((self.version, sorted(self._settings.items()))).encode()).hexdigest()[:8]
        name = f"{self._challenge}-{seed}-{digest}"
        game = home / name / "game.z8"
        if game.exists():
            return game
        home.mkdir(parents=True, exist_ok=True)
        options = textworld.GameOptions()
        options.seeds = seed
        folder = tempfile.mkdtemp(prefix=name, dir=home)
        options.path = str(Path(folder) / "game.z8")
        made = challenges.CHALLENGES[f"tw-{self._challenge}"][1](self._settings, options)
        compile_game(made, options)
        try:
            os.rename(folder, home / name)
        except OSError:  # another process has compiled the same game first
            shutil.rmtree(folder, ignore_errors=True)
        return game
