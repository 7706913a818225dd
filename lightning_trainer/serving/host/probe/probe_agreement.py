"""Whether trainer and engine compute the same model: the same probe, scored on both sides."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.serving.publication import Tolerance

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class ProbeAgreement:
    """Differences between two scorings of one probe, in nats."""

    max_abs: float
    mean_abs: float

    def refusal(self, tolerance: Tolerance) -> str | None:
        """Return why they do not agree, or None when they do. NaN agrees with nothing."""
        if not self.max_abs <= tolerance.max_abs or not self.mean_abs <= tolerance.mean_abs:
            return (
                f"trainer and engine differ on the probe by {self.max_abs:.3g} nats at most and {self.mean_abs:.3g} on "
                f"average; allowed are {tolerance.max_abs:g} and {tolerance.mean_abs:g}"
            )
        return None


def compare(ours: Rows, theirs: Rows) -> ProbeAgreement:
    """Compare two scorings of the same sequences, token by token."""
    differences = [
        abs(a - b) for row_a, row_b in zip(ours, theirs, strict=True) for a, b in zip(row_a, row_b, strict=True)
    ]
    if not all(math.isfinite(difference) for difference in differences):
        return ProbeAgreement(math.inf, math.inf)
    return ProbeAgreement(max(differences), math.fsum(differences) / len(differences))
