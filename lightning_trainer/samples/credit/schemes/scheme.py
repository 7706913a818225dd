"""The interface of a credit-assignment scheme: the trajectories of one group in, credits out.

A scheme sees the group and not one attempt alone, because what counts as missing depends on it: a kind of reward that
any attempt of the group was given is expected of all of them, since a return with a part left out is not comparable
(``kinds.py``). It sees all agents, because some divide a reward among them; what is expected of one agent is not
expected of another.
"""

from collections.abc import Sequence
from typing import Protocol

from lightning_trainer.types import Credit, Trajectory


class CreditScheme(Protocol):
    """Turns the rewards of one group into a credit for each transition."""

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """Return the credits ``[G][T]`` of each trajectory's transitions, in their order.

        Args:
            trajectories_G: those of the policy's agents in the attempts of one group; the order has no effect.

        Raises:
            CreditAssignmentError: a reward is NaN or infinite.
        """
        ...
