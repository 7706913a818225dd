"""TextArena's single-player games: ``textarena:GuessTheNumber-v0``, ``textarena:TowerOfHanoi-v0``.

Source: Guertler et al. 2025, arXiv 2504.11442; https://github.com/LeonGuertler/TextArena.
"""

from __future__ import annotations

import itertools
from importlib.metadata import version as version_of
from typing import Any

import textarena

from lightning_trainer.environments.protocol import Action, Observation, Step, Task, both_splits

_LOOKED_AT = 64
"""How many openings are searched for one of each split."""


class TextArena:
    """A single-player game of TextArena.

    Args:
        game: as ``textarena.make`` takes it, without ``-raw``: the observations of a raw game are lists of messages
            instead of text, and it does not put actions into brackets.
        options: the game's options.
    """

    version = f"2-textarena-{version_of('textarena')}"

    def __init__(self, game: str, **options: Any) -> None:
        self._game = game
        self._options = options
        self._said: Any = None
        self._world: Any = None
        self.holds_out = both_splits(map(self._opened, range(_LOOKED_AT)))

    def reset(self, task: Task) -> Observation:
        openings = (self._opened(task.random(number).randrange(2**31)) for number in itertools.count())
        if self.holds_out:
            task.of_split(openings, str)
        else:
            next(openings)
        return Observation(str(self._said))

    def step(self, action: Action) -> Step:
        done, _ = self._world.step(action.text)
        if done:
            rewards, told = self._world.close()
            reason = (told or {}).get(0, {}).get("reason", "The game is over.")
            reward = None if rewards is None else float(rewards.get(0, 0.0))
            return Step(Observation(str(reason)), reward, True)
        _, said = self._world.get_observation()
        # Each observation repeats the earlier ones, which the conversation already contains.
        new = str(said).removeprefix(str(self._said))
        self._said = said
        return Step(Observation(new.strip() or str(said)), 0.0, False)

    def _opened(self, seed: int) -> str:
        """Start a game, and return text that distinguishes it: its first observation and its state (a hidden word)."""
        self._world = textarena.make(self._game, **self._options)
        self._world.reset(num_players=1, seed=seed)
        _, self._said = self._world.get_observation()
        game = self._world
        while hasattr(game, "env"):
            game = game.env
        return f"{self._said}\n{game.state.game_state!r}"
