"""Soft punishment of long responses, on top of any scheme that gives rewards.

Formula, for the longest response of a row, of ``n`` tokens, with the maximum ``L`` and the buffer ``B``: nothing up to
``L - B``, ``-penalty * (n - (L - B)) / B`` up to ``L`` and ``-penalty`` beyond. Source: Yu et al., DAPO (arXiv
2503.14476), equation 13, with ``penalty = 1``; there a row is one response.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_trainer.samples.credit.schemes.scheme import CreditScheme
from lightning_trainer.types import Credit, Trajectory


def overlong_penalty(tokens: int, *, max_response_tokens: int, buffer_tokens: int, penalty: float) -> float:
    """Return what is taken off, in reward units: 0 or more."""
    over = tokens - (max_response_tokens - buffer_tokens)
    return penalty * min(max(over / buffer_tokens, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class OverlongShaping:
    """Takes the penalty of a row's longest response off each of the row's credits."""

    scheme: CreditScheme
    max_response_tokens: int
    buffer_tokens: int
    penalty: float = 1.0

    def __call__(self, trajectories_G: Sequence[Trajectory]) -> list[list[Credit]]:
        """See ``CreditScheme``."""
        credits_G = self.scheme(trajectories_G)
        longest: dict[str, int] = {}
        for trajectory, credits_T in zip(trajectories_G, credits_G, strict=True):
            for step, credit in zip(trajectory.transitions, credits_T, strict=True):
                if step.gap:
                    continue  # what is not trained is not punished
                longest[credit.row_id] = max(longest.get(credit.row_id, 0), len(step.response_ids))
        return [
            [self._shaped(credit, longest.get(credit.row_id, 0)) for credit in credits_T] for credits_T in credits_G
        ]

    def _shaped(self, credit: Credit, tokens: int) -> Credit:
        if credit.value is None:
            return credit
        taken_off = overlong_penalty(
            tokens,
            max_response_tokens=self.max_response_tokens,
            buffer_tokens=self.buffer_tokens,
            penalty=self.penalty,
        )
        return replace(credit, value=credit.value - taken_off)
