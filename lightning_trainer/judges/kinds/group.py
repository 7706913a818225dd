"""``group``: all attempts of a group in one question, with a reason and then a score for each (RULER).

Ranking several attempts is easier than grading a single one, and only the differences within a group are trained.
Scores from different questions are never compared. Source: OpenPipe, "RULER: Relative Universal LLM-Elicited Rewards".
"""

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from lightning_trainer.config.judges import GroupConfig, normalized
from lightning_trainer.errors import JudgeError
from lightning_trainer.judges.attempts import JudgedAttempt
from lightning_trainer.judges.judge import Verdict
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.models.client import ModelClient, ask
from lightning_trainer.judges.models.structured_output import (
    Answer,
    MalformedAnswerError,
    list_of,
    number_between,
    shaped,
)
from lightning_trainer.judges.rendering import rendered
from lightning_trainer.judges.system_prompts import system_prompt


class GroupJudge:
    """Scores all attempts of a group in one question."""

    cached = True

    def __init__(self, config: GroupConfig, client: ModelClient) -> None:
        self.config = config
        self._client = client

    def question(self, attempts: Sequence[JudgedAttempt]) -> str:
        low, high = self.config.scale
        shown = rendered(attempts, self.config.max_chars)
        if len(attempts) < 2:
            raise JudgeError(
                "a group judge compares attempts, and the group has only one; use kind rubric for single ones"
            )
        return (
            f"{shown.text}\n\nScore all {len(attempts)} attempts from {low:g} to {high:g}, each by its code: "
            f"{', '.join(shown.codes)}."
        )

    async def verdicts(self, attempts: Sequence[JudgedAttempt], question: str, budget: Budget) -> Sequence[Verdict]:
        codes = (await asyncio.to_thread(rendered, attempts, self.config.max_chars)).codes
        answer = await ask(
            self._client,
            self.config,
            budget,
            system=system_prompt(self.config, self._shape),
            question=question,
            shape=self._shape,
            check=lambda answer: _check(answer, codes),
        )
        given = {one.code: one for one in _scores(answer)}
        return [
            Verdict(place, normalized(given[code].score, self.config.scale), given[code].reason)
            for place, code in enumerate(codes)
        ]

    async def close(self) -> None:
        await self._client.close()

    @cached_property
    def _shape(self) -> type[Answer]:
        one = shaped("AttemptScore", code=str, reason=str, score=number_between(*self.config.scale))
        return shaped("GroupAnswer", scores=list_of(one))


def _scores(answer: Any) -> Sequence[Any]:
    return answer.scores


def _check(answer: Answer, codes: Sequence[str]) -> None:
    named = [one.code for one in _scores(answer)]
    if unknown := [code for code in named if code not in codes]:
        raise MalformedAnswerError(f"there is no attempt {', '.join(unknown[:4])}; the codes are {', '.join(codes)}")
    if missing := [code for code in codes if code not in named]:
        raise MalformedAnswerError(f"it has no score for {', '.join(missing)}")
    if len(named) > len(codes):
        raise MalformedAnswerError(f"it has {len(named)} scores for {len(codes)} attempts")
