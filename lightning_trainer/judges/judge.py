"""What every kind of judge is: attempts in, verdicts out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lightning_trainer.config.judges import AnyJudge
from lightning_trainer.judges.attempts import JudgedAttempt
from lightning_trainer.judges.models.budget import Budget


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of one attempt, or of one agent or call in it."""

    place: int
    """Which of the attempts that were judged together, from 0."""
    value: float | None
    """None: the judge gave no number."""
    reason: str
    agent: str | None = None
    """Only of a verdict on one agent."""
    call: int | None = None
    """Only of a verdict on one call: which of the attempt's, from 0 by start time."""


class Judge(Protocol):
    """One ``[[judge]]``; holds no state of what it judges."""

    @property
    def config(self) -> AnyJudge: ...

    @property
    def whole_group(self) -> bool:
        """Whether attempts are judged against each other, all of a group at once."""
        ...

    @property
    def cached(self) -> bool:
        """Whether the same question need not be asked twice."""
        ...

    def question(self, attempts: Sequence[JudgedAttempt]) -> str:
        """Return all that a verdict depends on, as text; pure.

        Raises:
            JudgeError: they cannot be judged.
        """
        ...

    async def verdicts(self, attempts: Sequence[JudgedAttempt], question: str, budget: Budget) -> Sequence[Verdict]:
        """Return a verdict for every attempt, or for its agents or calls.

        Args:
            question: what :meth:`question` returned for them.

        Raises:
            JudgeError: there is none.
        """
        ...

    async def close(self) -> None: ...
