"""The interface of every kind of judge: attempts in, verdicts out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lightning_trainer.config.judges import AnyJudge
from lightning_trainer.errors import JudgeError
from lightning_trainer.judges.attempts import JudgedAttempt, Turn
from lightning_trainer.judges.models.budget import Budget


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdict on an attempt, or on one agent or call in it."""

    place: int
    """Index among the attempts that were judged together."""
    value: float | None
    """None if the judge gave no number."""
    reason: str
    agent: str | None = None
    """Set only for a verdict on one agent."""
    call: int | None = None
    """Set only for a verdict on one call: its index in the attempt by start time."""


class Judge(Protocol):
    """One ``[[judge]]``; keeps no state about what it judges."""

    @property
    def config(self) -> AnyJudge:
        """Return the judge's section of the configuration."""
        ...

    @property
    def cached(self) -> bool:
        """Whether the answer to the same question can be reused."""
        ...

    def question(self, attempts: Sequence[JudgedAttempt]) -> str:
        """Return everything that a verdict depends on, as text; pure.

        Raises:
            JudgeError: the attempts cannot be judged.
        """
        ...

    async def verdicts(self, attempts: Sequence[JudgedAttempt], question: str, budget: Budget) -> Sequence[Verdict]:
        """Return a verdict for every attempt, or for its agents or calls.

        Args:
            question: what :meth:`question` returned for the attempts.

        Raises:
            JudgeError: there is no usable answer.
        """
        ...

    async def close(self) -> None: ...


def agents_to_score(one: JudgedAttempt) -> Sequence[str]:
    """Return the names of an attempt's agents, each of which gets a verdict.

    Raises:
        JudgeError: there is none, or a call is of no named agent.
    """
    if not one.turns or any(turn.call.agent is None for turn in one.turns):
        raise JudgeError(
            f"attempt {one.attempt.attempt_id} has no call, or one without an agent's name, so agents cannot be scored"
        )
    return one.agents


def turns_to_score(one: JudgedAttempt) -> Sequence[Turn]:
    """Return an attempt's calls, each of which gets a verdict.

    Raises:
        JudgeError: there is none, or they cannot be told apart.
    """
    ids = [turn.call.response_id for turn in one.turns]
    if not ids or None in ids or len(set(ids)) < len(ids):
        raise JudgeError(
            f"attempt {one.attempt.attempt_id} has no call, or calls have no response id or share one, so they cannot "
            "be scored one by one"
        )
    return one.turns
