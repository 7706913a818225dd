"""Terminal-reward credit: the reward of the attempt is broadcast to each of its transitions.

One row per attempt and agent: however many calls an attempt took, it is compared with the others once. Rewards of
single steps are not used. Source: outcome supervision, Shao et al., DeepSeekMath (arXiv 2402.03300), section 4.1.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.samples.credit.kinds import end_of, kinds_by_agent
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class TerminalReward:
    """Credits every transition with ``R``, the reward of its attempt and its agent's own; None where it is missing."""

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        kinds = kinds_by_agent(trajectories_G)
        credits_G: list[list[Credit]] = []
        for trajectory in trajectories_G:
            own = kinds[trajectory.agent]
            value = end_of(trajectory, own)
            credit = Credit(value if own.end else None, f"{trajectory.attempt.attempt_id}/{trajectory.agent}")
            credits_G.append([credit] * len(trajectory.transitions))
        return credits_G
