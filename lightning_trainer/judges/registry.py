"""Kinds of judges by name."""

from collections.abc import Callable
from typing import Any

from lightning_trainer.config.rewards.judges import AnyJudge, ModelJudge
from lightning_trainer.judges.judge import Judge
from lightning_trainer.judges.kinds.agent_credit import AgentCreditJudge
from lightning_trainer.judges.kinds.group import GroupJudge
from lightning_trainer.judges.kinds.pairwise import PairwiseJudge
from lightning_trainer.judges.kinds.program import ProgramJudge
from lightning_trainer.judges.kinds.rubric import RubricJudge
from lightning_trainer.judges.models.client import ModelClient

_ASK_A_MODEL: dict[str, Callable[[Any, ModelClient], Judge]] = {
    "agent_credit": AgentCreditJudge,
    "group": GroupJudge,
    "pairwise": PairwiseJudge,
    "rubric": RubricJudge,
}


def make_judge(config: AnyJudge) -> Judge:
    """Return the judge; it belongs to the event loop that it first judges on, and is closed on it."""
    if isinstance(config, ModelJudge):
        return _ASK_A_MODEL[config.kind](config, ModelClient(config))
    return ProgramJudge(config)
