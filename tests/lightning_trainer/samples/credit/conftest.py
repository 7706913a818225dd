"""A team at work: several agents in several attempts, from a few words."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lightning_trainer.types import Trajectory


@pytest.fixture
def team(make_attempt, make_transition, make_trajectory) -> Callable[..., list[Trajectory]]:
    """Make one attempt's trajectories from ``agent=[(name, reward, parent), ...]``, with rewards at every scope."""

    def team(attempt_id: str, reward: float | None = None, own: dict | None = None, **agents) -> list[Trajectory]:
        trajectories = []
        for agent, steps in agents.items():
            transitions = [
                make_transition(name, attempt_id=attempt_id, agent=agent, reward=step, parent_id=parent)
                for name, step, parent in steps
            ]
            trajectory = make_trajectory(*transitions, reward=reward, attempt=make_attempt(attempt_id))
            trajectories.append(replace(trajectory, agent=agent, own_reward=(own or {}).get(agent)))
        return trajectories

    return team


@pytest.fixture
def values() -> Callable[..., dict[str, float | None]]:
    """Run a scheme and return the credit of every transition by its id."""

    def values(scheme, trajectories) -> dict[str, float | None]:
        return {
            step.transition_id: credit.value
            for trajectory, credits_T in zip(trajectories, scheme(trajectories), strict=True)
            for step, credit in zip(trajectory.transitions, credits_T, strict=True)
        }

    return values
