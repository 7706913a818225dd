"""Discounted-return credit over the transitions of one agent in one attempt; one row per transition.

Time is counted in transitions, not tokens: an agent that writes longer answers is not discounted more.
Source: Sutton & Barto, Reinforcement Learning, 2nd ed., section 3.3; edges and forks as in ``returns.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.errors import CreditAssignmentError
from lightning_trainer.samples.credit.kinds import end_of, kinds_by_agent, steps_of
from lightning_trainer.samples.credit.schemes.returns import parent_indices, tree_returns
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class DiscountedReturn:
    """Credits transition ``t`` with ``G_t = r_t + gamma * mean(G_c)`` over the transitions ``c`` that follow it.

    In a chain that is ``r_t + gamma * G_{t+1}``. If nothing follows, ``G_t = r_t + R`` with the terminal reward ``R``:
    the last transition of every branch gets the outcome once, and an earlier one gets its discounted mean.
    """

    gamma: float = 1.0
    """Discount per transition, in [0, 1]."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise CreditAssignmentError(f"gamma must be in [0, 1], got {self.gamma}")

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        kinds = kinds_by_agent(trajectories_G)
        credits_G: list[list[Credit]] = []
        for trajectory in trajectories_G:
            own = kinds[trajectory.agent]
            returns_T = tree_returns(
                parent_indices(trajectory), steps_of(trajectory, own), end_of(trajectory, own), self.gamma
            )
            credits_G.append(
                [
                    Credit(value if own.any else None, step.transition_id)
                    for step, value in zip(trajectory.transitions, returns_T, strict=True)
                ]
            )
        return credits_G
