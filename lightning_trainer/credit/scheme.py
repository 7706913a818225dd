"""The interface of a credit-assignment scheme: the trajectories of one agent in one group in, credits out.

A scheme sees the group and not one attempt alone, because what counts as missing depends on it: a kind of reward that
any attempt of the group was given is expected of all of them, for a return with a part left out is not comparable.
"""

from collections.abc import Sequence
from typing import Protocol

from lightning_trainer.types import Credit, Trajectory


class CreditScheme(Protocol):
    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """Return the credits ``[G][T]`` of each trajectory's transitions, in their order.

        Args:
            trajectories_G: one agent's in the attempts of one group.

        Raises:
            CreditAssignmentError: a reward is NaN or infinite.
        """
        ...
