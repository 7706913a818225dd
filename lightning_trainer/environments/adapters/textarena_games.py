"""TextArena's single-player games: ``textarena:GuessTheNumber-v0``, ``textarena:TowerOfHanoi-v0``.

Source: Guertler et al. 2025, arXiv 2504.11442; https://github.com/LeonGuertler/TextArena.
"""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import Any

import textarena

from lightning_trainer.environments.protocol import HELD_OUT, Action, Observation, Step, Task


class TextArena:
    """A single-player game of TextArena.

    Args:
        game: as ``textarena.make`` takes it, without ``-raw``: a raw game observes lists of messages instead of text,
            and puts no action into brackets.
        options: of the game.
    """

    version = f"1-textarena-{version_of('textarena')}"

    def __init__(self, game: str, **options: Any) -> None:
        self._game = game
        self._options = options
        self._world: Any = textarena.make(game, **options)

    def reset(self, task: Task) -> Observation:
        self._world = textarena.make(self._game, **self._options)
        self._world.reset(num_players=1, seed=2 * task.seed + (task.split == HELD_OUT))
        _, self._said = self._world.get_observation()
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
