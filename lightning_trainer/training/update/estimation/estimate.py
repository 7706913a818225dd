"""What an estimator gives for a batch: advantages for the policy and, where there is a critic, returns for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.types import Sample


@dataclass(frozen=True, slots=True)
class Estimate:
    """By sample id, one value a token."""

    advantages: dict[str, list[float]]
    """0.0 where the loss mask is 0."""
    returns: dict[str, list[float]]
    """What the critic should have said."""
    return_masks: dict[str, list[int]]
    """1 on the trained tokens that the critic learns from."""

    @classmethod
    def empty(cls, samples: Sequence[Sample]) -> "Estimate":
        """Return one of zeros, to be filled in."""
        zeros = [{sample.sample_id: [0.0] * len(sample.token_ids) for sample in samples} for _ in range(2)]
        return cls(*zeros, return_masks={sample.sample_id: [0] * len(sample.token_ids) for sample in samples})
