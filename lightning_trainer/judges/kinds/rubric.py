"""``rubric``: named criteria with weights, each with a verdict and a reason.

Score: the weighted mean of the verdicts, each from 0 to 1. A criterion missing from the answer is an error, not a no;
so is an unknown criterion.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from lightning_trainer.config.judges import RubricConfig, normalized
from lightning_trainer.judges.attempts import JudgedAttempt
from lightning_trainer.judges.judge import Verdict
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.models.client import ModelClient, ask
from lightning_trainer.judges.models.structured_output import (
    Answer,
    MalformedAnswerError,
    list_of,
    number_between,
    one_of,
    shaped,
)
from lightning_trainer.judges.rendering import rendered
from lightning_trainer.judges.system_prompts import system_prompt


class RubricJudge:
    """Scores attempts by named criteria."""

    cached = True

    def __init__(self, config: RubricConfig, client: ModelClient) -> None:
        self.config = config
        self._client = client

    def question(self, attempts: Sequence[JudgedAttempt]) -> str:
        (attempt,) = attempts
        criteria = "\n".join(f"- {one.name}: {one.says}" for one in self.config.criterion)
        scale = self.config.scale
        how = "true where it holds, false where not" if scale is None else f"a number from {scale[0]:g} to {scale[1]:g}"
        shown = rendered([attempt], self.config.max_chars)
        return f"{shown.text}\n\nThe criteria, each to be given one verdict ({how}):\n{criteria}"

    async def verdicts(self, attempts: Sequence[JudgedAttempt], question: str, budget: Budget) -> Sequence[Verdict]:
        answer = await ask(
            self._client,
            self.config,
            budget,
            system=system_prompt(self.config, self._shape),
            question=question,
            shape=self._shape,
            check=self._check,
        )
        given = {one.criterion: one for one in self._verdicts_of(answer)}
        weighted = [(one, self._value(given[one.name].verdict)) for one in self.config.criterion]
        total = sum(one.weight for one, _ in weighted)
        reason = "; ".join(f"{one.name} {value:g}: {given[one.name].reason}" for one, value in weighted)
        return [Verdict(0, sum(one.weight * value for one, value in weighted) / total, reason)]

    async def close(self) -> None:
        await self._client.close()

    def _value(self, verdict: bool | float) -> float:
        return float(verdict) if self.config.scale is None else normalized(float(verdict), self.config.scale)

    @cached_property
    def _shape(self) -> type[Answer]:
        scale = self.config.scale
        one = shaped(
            "CriterionVerdict",
            criterion=one_of([one.name for one in self.config.criterion]),
            reason=str,
            verdict=bool if scale is None else number_between(*scale),
        )
        return shaped("RubricAnswer", verdicts=list_of(one))

    @staticmethod
    def _verdicts_of(answer: Any) -> Sequence[Any]:
        return answer.verdicts

    def _check(self, answer: Answer) -> None:
        named = [one.criterion for one in self._verdicts_of(answer)]
        missing = [one.name for one in self.config.criterion if one.name not in named]
        twice = sorted({name for name in named if named.count(name) > 1})
        if missing:
            raise MalformedAnswerError(f"it gives no verdict on {', '.join(missing)}")
        if twice:
            raise MalformedAnswerError(f"it gives several verdicts on {', '.join(twice)}")
