"""Calls that are not trained, put with those that are: how reward gets across them where a critic's scheme runs.

Such a scheme works out advantages in the trainer, from what is in the batch. So a sample brings along the untrained
calls that come after one of its own, with what they earned; one that comes after no trained call is of no use to any.
"""

from collections.abc import Container, Mapping, Sequence

from lightning_trainer.types import Trajectory, Transition


def gaps_after(
    trajectories_G: Sequence[Trajectory], trained: Container[str], passed_on: Mapping[str, float]
) -> dict[str, list[Transition]]:
    """Return by the id of a trained transition the untrained ones between it and the next trained ones of its branches.

    Args:
        passed_on: what the untrained ones earned, by id; one that is not in it hands nothing on.
    """
    after: dict[str, list[Transition]] = {}
    nearest: dict[str, str] = {}
    for trajectory in trajectories_G:
        for step in trajectory.transitions:  # none comes before the one that it follows
            name, parent = step.transition_id, step.parent_id
            if parent is None or name in trained or name not in passed_on:
                continue
            above = parent if parent in trained else nearest.get(parent)
            if above is not None:
                nearest[name] = above
                after.setdefault(above, []).append(step)
    return after
