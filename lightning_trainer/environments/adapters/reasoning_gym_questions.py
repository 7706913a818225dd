"""reasoning-gym's generated questions with checkable answers, one turn each: ``reasoning-gym:basic_arithmetic``.

Source: Stojanovski et al. 2025, arXiv 2505.24760; https://github.com/open-thought/reasoning-gym.
"""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from typing import Any

import reasoning_gym

from lightning_trainer.environments.protocol import Action, Observation, Step, Task

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


class ReasoningGym:
    """One dataset of reasoning-gym.

    Args:
        dataset: as ``reasoning_gym.create_dataset`` names it.
        options: the dataset's options, such as ``min_digits=2``.
    """

    version = f"1-reasoning-gym-{version_of('reasoning-gym')}"

    def __init__(self, dataset: str, **options: Any) -> None:
        self._dataset = dataset
        self._options = options

    def reset(self, task: Task) -> Observation:
        made = (
            reasoning_gym.create_dataset(
                self._dataset, seed=task.random(number).randrange(2**31), size=1, **self._options
            )
            for number in range(10_000)
        )
        self._questions, self._entry = task.of_split(
            ((dataset, dataset[0]) for dataset in made), lambda pair: str(pair[1]["question"])
        )
        return Observation(str(self._entry["question"]))

    def step(self, action: Action) -> Step:
        marked = _ANSWER.findall(action.text)
        answer = (marked[-1] if marked else action.text).strip()
        score = float(self._questions.score_answer(answer, entry=self._entry))
        return Step(Observation("Right." if score == 1.0 else f"The answer is {self._entry['answer']}."), score, True)
