"""Returns along parent edges: the pure function that several schemes share.

Rewards flow from a transition to the one that it follows and to nothing else, so parallel branches never see each
other's (promise 4). At a fork the mean over the branches is taken, as the value of a state is estimated from the
continuations that were sampled from it. Source: Sutton & Barto, Reinforcement Learning, 2nd ed., sections 3.3 and 5.1.
"""

from collections.abc import Sequence

from lightning_trainer.samples.credit.kinds import plus, times
from lightning_trainer.types import Trajectory


def tree_returns(
    parents: Sequence[int | None], rewards_T: Sequence[float | None], end: float | None, gamma: float
) -> list[float | None]:
    """Return ``G_t = r_t + gamma * mean(G_c)`` over the ``c`` that follow ``t``; ``r_t + end`` where nothing does.

    Args:
        parents: index of what each transition follows; the edges form a forest.
        rewards_T: of the single transitions, None where missing.
        end: met once by the last transition of every branch, None when missing.
        gamma: discount per edge.
    """
    branches = [0] * len(parents)
    for parent in parents:
        if parent is not None:
            branches[parent] += 1
    following: list[float | None] = [0.0] * len(parents)
    returns_T: list[float | None] = [None] * len(parents)
    for index in leaves_first(parents):
        later = end if branches[index] == 0 else times(following[index], gamma / branches[index])
        returns_T[index] = plus(rewards_T[index], later)
        parent = parents[index]
        if parent is not None:
            following[parent] = plus(following[parent], returns_T[index])
    return returns_T


def leaves_first(parents: Sequence[int | None]) -> list[int]:
    """Return the indices, each before its parent's; by a loop, since chains can exceed any recursion limit."""
    awaited = [0] * len(parents)
    for parent in parents:
        if parent is not None:
            awaited[parent] += 1
    order = [index for index, count in enumerate(awaited) if count == 0]
    for index in order:  # grows while it is read
        parent = parents[index]
        if parent is not None:
            awaited[parent] -= 1
            if awaited[parent] == 0:
                order.append(parent)
    return order


def depths(parents: Sequence[int | None]) -> list[int]:
    """Return how many transitions of the same branch came before each."""
    depth_T = [0] * len(parents)
    for index in reversed(leaves_first(parents)):
        parent = parents[index]
        depth_T[index] = 0 if parent is None else depth_T[parent] + 1
    return depth_T


def parent_indices(trajectory: Trajectory) -> list[int | None]:
    """Return for each transition the index of the one that it follows."""
    index_of = {step.transition_id: index for index, step in enumerate(trajectory.transitions)}
    return [None if step.parent_id is None else index_of[step.parent_id] for step in trajectory.transitions]
