"""MAGRPO: all agents share one return, and each agent is compared with itself in the other attempts, turn by turn.

Formula (Liu et al., LLM Collaboration With Multi-Agent Reinforcement Learning, arXiv 2508.04652, Algorithm 1): with
the joint reward ``r_t`` of turn ``t`` (the sum over all agents),

    R_t = sum_{t' >= t} r_t' + R          joint return          A_{i,t} = R_t - mean over the group's R_t

This scheme gives ``R_t`` and says with whom it is compared: the same agent at the same turn (``Credit.peers``). The
estimator subtracts the mean: ``grpo`` with ``normalize_by_std = false`` is the paper's and its code's (CoMLRL); AT-GRPO
(arXiv 2510.11062) divides by the deviation. An agent's turns are counted along its own parent edges, so parallel
branches have the same turn numbers. One row per transition.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.samples.credit.kinds import kinds_by_agent, outcome_of, own_of, plus, steps_of, total
from lightning_trainer.samples.credit.schemes.returns import depths, parent_indices
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class JointReturn:
    """Credits turn ``t`` of every agent with ``R_t``; None where a reward that enters it is missing."""

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        kinds = kinds_by_agent(trajectories_G)
        turns_GT = [depths(parent_indices(trajectory)) for trajectory in trajectories_G]
        by_attempt: dict[str, list[int]] = {}
        for index, trajectory in enumerate(trajectories_G):
            by_attempt.setdefault(trajectory.attempt.attempt_id, []).append(index)
        any_reward = any(own.any for own in kinds.values())
        credits_G: list[list[Credit]] = [[] for _ in trajectories_G]
        for members in by_attempt.values():
            rewards: dict[int, list[float | None]] = {}
            for index in members:
                trajectory = trajectories_G[index]
                for turn, reward in zip(turns_GT[index], steps_of(trajectory, kinds[trajectory.agent]), strict=True):
                    rewards.setdefault(turn, []).append(reward)
            first = trajectories_G[members[0]]
            own = [own_of(trajectories_G[index], kinds[trajectories_G[index].agent]) for index in members]
            joint = plus(outcome_of(first, kinds[first.agent]), total(own))
            returns: dict[int, float | None] = {}
            for turn in sorted(rewards, reverse=True):
                joint = returns[turn] = plus(total(rewards[turn]), joint)
            for index in members:
                credits_G[index] = [
                    Credit(returns[turn] if any_reward else None, step.transition_id, peers=f"turn {turn}")
                    for turn, step in zip(turns_GT[index], trajectories_G[index].transitions, strict=True)
                ]
        return credits_G
