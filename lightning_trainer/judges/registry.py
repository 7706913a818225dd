"""Kinds of judges by name."""

from collections.abc import Callable
from typing import Any

from lightning_trainer.config.judges import AnyJudge, ModelJudge
from lightning_trainer.judges.agent_credit import AgentCreditJudge
from lightning_trainer.judges.group import GroupJudge
from lightning_trainer.judges.judge import Judge
from lightning_trainer.judges.models.client import ModelClient
from lightning_trainer.judges.pairwise import PairwiseJudge
from lightning_trainer.judges.program import ProgramJudge
from lightning_trainer.judges.rubric import RubricJudge

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
