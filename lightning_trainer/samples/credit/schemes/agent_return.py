"""Return-to-go by agent: a transition is credited with what its own agent was given from then on.

Formula, for transition ``t`` of agent ``i``: ``G_t = r_t + gamma * mean(G_c)`` over the transitions ``c`` of agent
``i`` that follow it, or ``r_t + R_i + w * R`` if none does, with the agent's own reward ``R_i`` and the attempt's
``R``. With ``w = 0`` no agent sees what another earned. One row per transition. Source: independent learners with local
rewards, Tan, Multi-Agent Reinforcement Learning (ICML 1993); return-to-go as in Sutton & Barto, 2nd ed., section 3.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.samples.credit.kinds import end_of, kinds_by_agent, steps_of
from lightning_trainer.samples.credit.schemes.returns import parent_indices, tree_returns
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class AgentReturn:
    """See the module; ranges are in ``AgentReturnCredit``."""

    gamma: float = 1.0
    team_weight: float = 0.0

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        kinds = kinds_by_agent(trajectories_G)
        credits_G: list[list[Credit]] = []
        for trajectory in trajectories_G:
            own = kinds[trajectory.agent]
            given = own.steps or own.own or (own.outcome and self.team_weight > 0)
            end = end_of(trajectory, own, self.team_weight)
            returns_T = tree_returns(parent_indices(trajectory), steps_of(trajectory, own), end, self.gamma)
            credits_G.append(
                [
                    Credit(value if given else None, step.transition_id)
                    for step, value in zip(trajectory.transitions, returns_T, strict=True)
                ]
            )
        return credits_G
