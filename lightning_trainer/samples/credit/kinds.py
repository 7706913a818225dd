"""The kinds of reward: for single calls, for one agent, and for the whole attempt.

A kind that was never given is not part of the task and counts as 0. A kind that was given at least once is expected of
all that are compared with each other: where it is missing, so is every credit that depends on it (promise 6). Nothing
is expected of a call that cannot be trained (``Transition.gap``), but a reward that such a call was given counts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from lightning_trainer.errors import CreditAssignmentError
from lightning_trainer.types import Trajectory

# A reward is a number or missing.


def finite(reward: float | None, whose: str) -> float | None:
    """Return the reward unchanged.

    Raises:
        CreditAssignmentError: it is NaN or infinite.
    """
    if reward is not None and not math.isfinite(reward):
        raise CreditAssignmentError(
            f"{whose}: the reward is {reward}; give a finite number, or None when it is missing"
        )
    return reward


_reward = attrgetter("reward")


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of reward that one agent has in the attempts of one group."""

    steps: bool
    """For single calls."""
    own: bool
    """For the agent in the attempt."""
    outcome: bool
    """For the attempt."""

    @property
    def end(self) -> bool:
        """Whether there is a reward that belongs to no single call."""
        return self.own or self.outcome

    @property
    def any(self) -> bool:
        """Whether there is a reward of any kind."""
        return self.steps or self.end


def kinds_by_agent(trajectories_G: Sequence[Trajectory]) -> Mapping[str, Kinds]:
    """Return the kinds of each agent: what is expected of one agent is not expected of another.

    The reward of the attempt is expected of all of them: an agent that took part only in attempts that lack it is
    missing it, too.
    """
    outcome = any(trajectory.reward is not None for trajectory in trajectories_G)
    kinds: dict[str, Kinds] = {}
    for trajectory in trajectories_G:
        known = kinds.get(trajectory.agent, Kinds(False, False, outcome))
        kinds[trajectory.agent] = Kinds(
            steps=known.steps or not set(map(_reward, trajectory.transitions)) <= {None},
            own=known.own or trajectory.own_reward is not None,
            outcome=outcome,
        )
    return kinds


def outcome_of(trajectory: Trajectory, kinds: Kinds) -> float | None:
    """Return the reward of the attempt: 0 if the task has none, None if it is missing."""
    reward = finite(trajectory.reward, f"attempt {trajectory.attempt.attempt_id}")
    return reward if kinds.outcome else 0.0


def own_of(trajectory: Trajectory, kinds: Kinds) -> float | None:
    """Return the agent's own reward: 0 if the task has none, None if it is missing."""
    reward = finite(trajectory.own_reward, f"agent {trajectory.agent} in attempt {trajectory.attempt.attempt_id}")
    return reward if kinds.own else 0.0


def end_of(trajectory: Trajectory, kinds: Kinds, team_weight: float = 1.0) -> float | None:
    """Return the reward at the end of a trajectory: the agent's own, plus the attempt's times ``team_weight``."""
    if team_weight == 0.0:
        return own_of(trajectory, kinds)
    return plus(own_of(trajectory, kinds), times(outcome_of(trajectory, kinds), team_weight))


def steps_of(trajectory: Trajectory, kinds: Kinds) -> list[float | None]:
    """Return the rewards ``[T]`` of the single calls: 0 if the task has none, None where missing; 0 for such a gap."""
    rewards_T = [finite(step.reward, f"transition {step.transition_id}") for step in trajectory.transitions]
    if not kinds.steps:
        return [0.0] * len(rewards_T)
    return [
        0.0 if reward is None and step.gap else reward
        for reward, step in zip(rewards_T, trajectory.transitions, strict=True)
    ]


def plus(a: float | None, b: float | None) -> float | None:
    """Add; a missing part makes the sum missing."""
    return None if a is None or b is None else a + b


def times(value: float | None, factor: float) -> float | None:
    """Multiply; a missing value stays missing."""
    return None if value is None else value * factor


def total(values: Sequence[float | None]) -> float | None:
    """Sum up; a missing part makes the sum missing."""
    present = [value for value in values if value is not None]
    return sum(present) if len(present) == len(values) else None
