"""The kinds of judges by name."""

from collections.abc import Callable
from typing import Any

from lightning_trainer.config.judges import AnyJudge, ModelJudge, ReferenceProbabilityConfig
from lightning_trainer.judges.judge import Judge
from lightning_trainer.judges.kinds.agent_credit import AgentCreditJudge
from lightning_trainer.judges.kinds.group import GroupJudge
from lightning_trainer.judges.kinds.pairwise import PairwiseJudge
from lightning_trainer.judges.kinds.program import ProgramJudge
from lightning_trainer.judges.kinds.reference_probability import ReferenceProbabilityJudge
from lightning_trainer.judges.kinds.rubric import RubricJudge
from lightning_trainer.judges.models.client import ModelClient
from lightning_trainer.judges.scoring_engine import EngineOf

_ASK_A_MODEL: dict[str, Callable[[Any, ModelClient], Judge]] = {
    "agent_credit": AgentCreditJudge,
    "group": GroupJudge,
    "pairwise": PairwiseJudge,
    "rubric": RubricJudge,
}


def make_judge(config: AnyJudge, engine_of: EngineOf) -> Judge:
    """Return the judge; it belongs to the event loop on which it first judges, and must be closed on it.

    Args:
        engine_of: returns the engine of a policy by name, or of the only one; for judges that use it.
    """
    if isinstance(config, ModelJudge):
        return _ASK_A_MODEL[config.kind](config, ModelClient(config))
    if isinstance(config, ReferenceProbabilityConfig):
        return ReferenceProbabilityJudge(config, engine_of(config.policy))
    return ProgramJudge(config)
