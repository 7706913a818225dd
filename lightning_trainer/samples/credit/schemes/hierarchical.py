"""Hierarchical credit: first among the agents of the attempt, then among the calls of each agent.

Formula: agent ``i`` gets ``R_i' = R * w_i / sum_j w_j + R_i`` (its part of the attempt's reward, and its own), and each
of its ``T_i`` calls gets ``R_i' / T_i + r_t``. So the parts of an attempt sum to ``R + sum_i R_i + sum_t r_t`` (promise
4), and an agent that makes many calls does not take the others' part. One row per attempt and agent; with rewards of
single calls, one row per transition. Source: our own composition; that the parts sum to the whole is the efficiency
axiom of Shapley, A Value for n-Person Games (1953), and equal weights are the uniform baseline that Shapley credit is
compared with (Wang et al., Shapley Q-value, AAAI 2020, arXiv 1907.05707).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from lightning_trainer.samples.credit.kinds import kinds_by_agent, outcome_of, own_of, plus, steps_of, times
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class Hierarchical:
    """See the module; ranges are in ``HierarchicalCredit``."""

    agent_weights: Mapping[str, float] = field(default_factory=dict)
    """By agent name or pattern; an agent's own name comes first, then the first pattern that it fits; otherwise 1."""

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        kinds = kinds_by_agent(trajectories_G)
        weights: dict[str, float] = {}
        for trajectory in trajectories_G:
            attempt_id = trajectory.attempt.attempt_id
            weights[attempt_id] = weights.get(attempt_id, 0.0) + self._weight(trajectory)
        credits_G: list[list[Credit]] = []
        for trajectory in trajectories_G:
            attempt_id, own = trajectory.attempt.attempt_id, kinds[trajectory.agent]
            part = times(outcome_of(trajectory, own), self._weight(trajectory) / weights[attempt_id])
            share = times(plus(part, own_of(trajectory, own)), 1 / len(trajectory.transitions))
            credits_G.append(
                [
                    Credit(
                        plus(share, reward) if own.any else None,
                        step.transition_id if own.steps else f"{attempt_id}/{trajectory.agent}",
                    )
                    for step, reward in zip(trajectory.transitions, steps_of(trajectory, own), strict=True)
                ]
            )
        return credits_G

    def _weight(self, trajectory: Trajectory) -> float:
        if trajectory.agent in self.agent_weights:
            return self.agent_weights[trajectory.agent]
        fitting = (weight for pattern, weight in self.agent_weights.items() if fnmatchcase(trajectory.agent, pattern))
        return next(fitting, 1.0)
