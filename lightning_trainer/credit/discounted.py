"""Discounted-return credit over the transitions of one agent in one attempt; one row a transition.

Time is counted in transitions, not tokens: an agent that writes longer answers is not discounted more. Rewards flow
back along ``Transition.parent_id`` only, so parallel branches never see each other's (promise 4).
Source: Sutton & Barto, Reinforcement Learning, 2nd ed., section 3.3; at a fork the mean over the branches, as the
value of a state is estimated from the continuations that were sampled from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.credit.finite import finite
from lightning_trainer.errors import CreditAssignmentError
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class DiscountedReturn:
    """Credits transition ``t`` with ``G_t = r_t + gamma * mean(G_c)`` over the transitions ``c`` that follow it.

    In a chain that is ``r_t + gamma * G_{t+1}``. Where nothing follows, ``G_t = r_t + R`` with the reward ``R`` of the
    attempt: the last transition of every branch meets the outcome once, and an earlier one its discounted mean.

    A kind of reward, ``r`` or ``R``, that nobody in the group was given is not part of the task. One that somebody was
    given and this transition lacks is missing, and with it every return that it would enter.
    """

    gamma: float = 1.0
    """Discount per transition, in [0, 1]."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise CreditAssignmentError(f"gamma must be in [0, 1], got {self.gamma}")

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        has_steps = any(step.reward is not None for trajectory in trajectories_G for step in trajectory.transitions)
        has_outcome = any(trajectory.reward is not None for trajectory in trajectories_G)
        return [
            [
                Credit(value if has_steps or has_outcome else None, transition.transition_id)
                for transition, value in zip(
                    trajectory.transitions, self._returns(trajectory, has_steps, has_outcome), strict=True
                )
            ]
            for trajectory in trajectories_G
        ]

    def _returns(self, trajectory: Trajectory, has_steps: bool, has_outcome: bool) -> list[float | None]:
        transitions = trajectory.transitions
        index_of = {transition.transition_id: index for index, transition in enumerate(transitions)}
        parents = [None if step.parent_id is None else index_of[step.parent_id] for step in transitions]
        outcome = finite(trajectory.reward, f"attempt {trajectory.attempt.attempt_id}") if has_outcome else 0.0
        branches = [0] * len(transitions)
        for parent in parents:
            if parent is not None:
                branches[parent] += 1
        awaited = list(branches)
        following: list[float | None] = [0.0] * len(transitions)
        returns_T: list[float | None] = [None] * len(transitions)
        ready = [index for index, count in enumerate(branches) if count == 0]
        # From the leaves to the roots; a loop, since chains are deeper than any recursion limit.
        while ready:
            index = ready.pop()
            reward = finite(transitions[index].reward, f"transition {transitions[index].transition_id}")
            reward = reward if has_steps else 0.0
            count = branches[index]
            later = outcome if count == 0 else _scaled(following[index], self.gamma / count)
            returns_T[index] = _sum(reward, later)
            parent = parents[index]
            if parent is not None:
                following[parent] = _sum(following[parent], returns_T[index])
                awaited[parent] -= 1
                if awaited[parent] == 0:
                    ready.append(parent)
        return returns_T


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
