"""SkyRL-Gym's text environments: ``skyrl-gym:gsm8k``, with tasks from a file.

Each line of the file is a task: ``prompt`` (text or messages), and the fields that the environment takes as ``extras``,
such as ``reward_spec``. Source: https://github.com/NovaSky-AI/SkyRL, skyrl-gym's ``BaseTextEnv``.
"""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import Any

import skyrl_gym

from lightning_trainer.environments.protocol import Action, Observation, Step, Task
from lightning_trainer.environments.task_fields import observation_of, shown


class SkyRLGym:
    """A text environment of SkyRL-Gym.

    Args:
        name: as ``skyrl_gym.make`` takes it.
        options: the environment's own configuration.
    """

    version = f"2-skyrl-gym-{version_of('skyrl-gym')}"

    def __init__(self, name: str, **options: Any) -> None:
        self._name = name
        self._options = options
        skyrl_gym.spec(name)

    def reset(self, task: Task) -> Observation:
        prompt = task.fields.get("prompt")
        if not prompt:
            raise ValueError(f"the task {task.name!r} has no prompt; skyrl-gym's tasks come from a file (--tasks)")
        extras = {key: value for key, value in task.fields.items() if key not in ("id", "prompt")}
        self._world: Any = skyrl_gym.make(self._name, env_config=self._options, extras=extras)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        opening, _ = self._world.init(messages)
        return observation_of(opening)

    def step(self, action: Action) -> Step:
        stepped = self._world.step(action.text)
        return Step(Observation(shown(stepped["observations"])), float(stepped["reward"]), bool(stepped["done"]))
