"""``agent_credit``: how good an attempt was, and each agent's or call's share in that.

The shares of an attempt add up to one, so the parts sum to the outcome; an answer whose shares do not is malformed.
Source: Zhang et al., "Controlling Large Language Model-based Agents for Large-Scale Decision-Making: An Actor-Critic
Approach" (LLaMAC, arXiv 2311.13884): a critic that states in words and a number what each agent contributed to the
outcome.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from lightning_trainer.config.judges import AgentCreditConfig, normalized
from lightning_trainer.errors import JudgeError
from lightning_trainer.judges.attempts import JudgedAttempt
from lightning_trainer.judges.judge import Verdict, agents_to_score, turns_to_score
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.models.client import ModelClient, ask
from lightning_trainer.judges.models.structured_output import (
    Answer,
    MalformedAnswerError,
    list_of,
    number_between,
    shaped,
)
from lightning_trainer.judges.rendering import message_text, rendered
from lightning_trainer.judges.system_prompts import system_prompt

_TOLERANCE = 0.01
_QUOTED = 80


class AgentCreditJudge:
    """Shares an outcome among agents or calls."""

    cached = True

    def __init__(self, config: AgentCreditConfig, client: ModelClient) -> None:
        self.config = config
        self._client = client

    def question(self, attempts: Sequence[JudgedAttempt]) -> str:
        (one,) = attempts
        shared_by = self._shared_by(one)
        # The beginnings of answers are the agents' words: outside of the marks, they would be instructions.
        calls = "".join(f"\n- {name}: {said}" for name, (_, said) in shared_by.items() if said)
        shown = rendered([one], self.config.max_chars, closings=[f"\n\n[the calls]{calls}" if calls else ""])
        named = "\n".join(f"- {name}: {about}" for name, (about, _) in shared_by.items())
        low, high = self.config.scale
        outcome = f"Score the attempt as a whole from {low:g} to {high:g}, and share"
        if self.config.outcome is not None:
            outcome = f"The attempt was given {self._given(one):g} ({self.config.outcome}). Share"
        return f"{shown.text}\n\n{outcome} it among these, each by its name:\n{named}"

    async def verdicts(self, attempts: Sequence[JudgedAttempt], question: str, budget: Budget) -> Sequence[Verdict]:
        (one,) = attempts
        names = list(self._shared_by(one))
        answer: Any = await ask(
            self._client,
            self.config,
            budget,
            system=system_prompt(self.config, self._shape),
            question=question,
            shape=self._shape,
            check=lambda answer: _check(answer, names),
        )
        outcome = self._given(one) if self.config.outcome else normalized(answer.score, self.config.scale)
        given = {share.name: share for share in answer.shares}
        total = sum(share.share for share in answer.shares)  # one, except for rounding
        return [
            Verdict(
                place=0,
                value=outcome * given[name].share / total,
                reason=f"share {given[name].share:g} of {outcome:g}: {given[name].reason}",
                agent=name if self.config.per == "agent" else None,
                call=place if self.config.per == "call" else None,
            )
            for place, name in enumerate(names)
        ]

    async def close(self) -> None:
        await self._client.close()

    def _shared_by(self, one: JudgedAttempt) -> Mapping[str, tuple[str, str]]:
        """Return the agents or calls that have a share, by name in the question: what each is, and for a call also how
        its answer begins."""
        if self.config.per == "agent":
            calls = [turn.call.agent for turn in one.turns]
            return {agent: (f"{calls.count(agent)} calls", "") for agent in agents_to_score(one)}
        return {
            f"call-{number}": (agent := turn.call.agent or "the agent", f"{agent}, {_beginning(turn.answer)!r}")
            for number, turn in enumerate(turns_to_score(one), start=1)
        }

    def _given(self, one: JudgedAttempt) -> float:
        name = self.config.outcome or ""
        value = (one.rewards or {}).get(name)
        if value is None:
            raise JudgeError(f"attempt {one.attempt.attempt_id} has no evaluation {name!r} that could be shared")
        return value

    @cached_property
    def _shape(self) -> type[Answer]:
        share = shaped("Share", name=str, reason=str, share=number_between(0.0, 1.0))
        score = {} if self.config.outcome else {"score": number_between(*self.config.scale)}
        return shaped("CreditAnswer", reason=str, **score, shares=list_of(share))


def _beginning(answer: Any) -> str:
    return "" if answer is None else message_text(answer)[:_QUOTED]


def _check(answer: Any, names: Sequence[str]) -> None:
    named = [share.name for share in answer.shares]
    if sorted(named) != sorted(names):
        raise MalformedAnswerError(
            f"it shares among {', '.join(named) or 'nobody'}, and has to among {', '.join(names)}"
        )
    total = sum(share.share for share in answer.shares)
    if abs(total - 1.0) > _TOLERANCE:
        raise MalformedAnswerError(f"the shares add up to {total:g}, not to 1")
