"""``[[policy.stage]]``: the stages of a policy's training, one after the other, such as SFT and then RL.

A step's number alone decides its stage, so an interrupted run resumes in the same one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.policies.credit import CreditConfig, named_scheme
from lightning_trainer.config.policies.rewards import Reward, checked_reward
from lightning_trainer.config.sections import Section


class StageConfig(Section):
    """One stage. Settings that it leaves out are the policy's own."""

    steps: int | None = Field(default=None, ge=1)
    """Number of steps; only the last stage may leave this out, and then continues until ``max_steps``."""
    data: Path | None = None
    """Demonstrations for ``sft`` or pairs for ``dpo``, in the form of ``lightning-trainer build`` or TRL; relative to
    the configuration's folder. None: train on what the agents do meanwhile."""
    batch_size: int = Field(default=64, ge=1)
    """Rows of ``data`` per step."""
    algorithm: AlgorithmConfig | None = None
    credit: CreditConfig | None = None
    reward: Reward | None = None
    lr: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Peak learning rate; the optimizer's schedule continues across all stages."""

    @field_validator("reward")
    @classmethod
    def _allowed(cls, reward: Reward | None) -> Reward | None:
        return None if reward is None else checked_reward(reward)

    @field_validator("credit", mode="before")
    @classmethod
    def _known_scheme(cls, value: Any) -> Any:
        return named_scheme(value)

    def require_use_of_all(self, of_policy: AlgorithmConfig) -> None:
        """Check that the stage's algorithm, by default the policy's, uses the stage's settings.

        Raises:
            ValueError: reinforcement learning has no use for ``data``, or imitation for ``credit``.
        """
        objective = (self.algorithm or of_policy).objective
        if self.data is not None and objective == "rl":
            raise ValueError(
                f"data = {str(self.data)!r} is for algorithm 'sft' or 'dpo'; reinforcement learning samples by itself: "
                "name one of them, or leave data out"
            )
        if objective != "rl" and self.credit is not None:
            raise ValueError(
                f"credit scheme {self.credit.scheme!r} divides rewards, and {objective!r} only compares attempts; "
                "leave credit out"
            )


def first_steps(stages: Sequence[StageConfig]) -> tuple[int, ...]:
    """Return the number of each stage's first step.

    Raises:
        ValueError: a stage other than the last does not say how long it is.
    """
    found, step = [], 1
    for number, stage in enumerate(stages, start=1):
        found.append(step)
        if stage.steps is None and number < len(stages):
            raise ValueError(f"stage {number} has no steps, so stage {number + 1} would never begin; set steps")
        step += stage.steps or 0
    return tuple(found)


def last_step(stages: Sequence[StageConfig]) -> int | None:
    """Return the number of the last step of all stages; None if there is no end."""
    if not stages or stages[-1].steps is None:
        return None
    return sum(stage.steps or 0 for stage in stages)
