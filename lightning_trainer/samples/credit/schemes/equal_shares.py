"""Terminal equal shares: the reward of the attempt is divided equally among all of its transitions.

Formula: ``R / T`` for each of the attempt's ``T`` transitions, whichever of the policy's agents made them; likewise
``R_i / T_i`` of an agent's own reward among that agent's. The shares of an attempt sum to its rewards (promise 4). One
row per attempt and agent, as all of its shares are equal. Source: uniform credit, Gangwani et al., Learning Guidance
Rewards with Trajectory-space Smoothing (arXiv 2010.12718); the sum is kept as in RUDDER (arXiv 1806.07857).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.samples.credit.kinds import kinds_by_agent, outcome_of, own_of, plus, times
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class EqualShares:
    """Credits every transition with ``R / T + R_i / T_i``; None where a reward is missing."""

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        kinds = kinds_by_agent(trajectories_G)
        in_attempt: dict[str, int] = {}
        for trajectory in trajectories_G:
            attempt_id = trajectory.attempt.attempt_id
            in_attempt[attempt_id] = in_attempt.get(attempt_id, 0) + len(trajectory.transitions)
        credits_G: list[list[Credit]] = []
        for trajectory in trajectories_G:
            attempt_id, own = trajectory.attempt.attempt_id, kinds[trajectory.agent]
            count = len(trajectory.transitions)
            of_team = times(outcome_of(trajectory, own), 1 / in_attempt[attempt_id])
            share = plus(of_team, times(own_of(trajectory, own), 1 / count))
            credits_G.append([Credit(share if own.end else None, f"{attempt_id}/{trajectory.agent}")] * count)
        return credits_G
