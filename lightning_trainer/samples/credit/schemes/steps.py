"""Per-step rewards: every transition is credited with the reward that it was given itself, and with nothing else.

Formula: ``r_t``; one row per transition. For rewards that are complete by themselves (a tool call that parses, a judge
of single answers): nothing later counts. Source: process supervision without its sum, Shao et al., DeepSeekMath (arXiv
2402.03300), section 4.1.3; the bandit case ``gamma = 0`` of Sutton & Barto, 2nd ed., section 3.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.samples.credit.kinds import kinds_by_agent, steps_of
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class StepRewards:
    """Credits transition ``t`` with ``r_t``; None where it was not scored. The attempt's reward is not used."""

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        kinds = kinds_by_agent(trajectories_G)
        return [
            [
                Credit(reward if kinds[trajectory.agent].steps else None, step.transition_id)
                for step, reward in zip(
                    trajectory.transitions, steps_of(trajectory, kinds[trajectory.agent]), strict=True
                )
            ]
            for trajectory in trajectories_G
        ]
