"""A reward is a number or missing."""

import math

from lightning_trainer.errors import CreditAssignmentError


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
