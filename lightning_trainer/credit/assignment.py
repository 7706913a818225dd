"""The credits of one group, and which of its transitions can be trained with them.

Each agent's trajectories go to the scheme on their own. Credit is worked out over all transitions before any is left
out: a call that is too long to train still happened, and what came after it still counts for what came before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_trainer.credit.scheme import CreditScheme
from lightning_trainer.transitions.reasons import Reason
from lightning_trainer.transitions.sequences import fits
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class Assignment:
    """Every transition of the group is in exactly one of the first two."""

    credits: Mapping[str, Credit]
    """By transition id: what can be trained; their values are numbers."""
    refused: Mapping[str, Reason]
    """By transition id: what cannot, and why."""
    row_credits: Mapping[str, tuple[float, ...]]
    """By attempt id: one value for each row that has something to train."""


def assign(trajectories: Sequence[Trajectory], scheme: CreditScheme, max_sample_tokens: int) -> Assignment:
    """Run a scheme over the trajectories of one group.

    Raises:
        CreditAssignmentError: the scheme cannot be applied.
    """
    by_agent: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_agent.setdefault(trajectory.agent, []).append(trajectory)
    trained: dict[str, Credit] = {}
    refused: dict[str, Reason] = {}
    rows: dict[str, dict[str, float]] = {}
    for own in by_agent.values():
        for trajectory, credits_T in zip(own, scheme(own), strict=True):
            for transition, credit in zip(trajectory.transitions, credits_T, strict=True):
                if credit.value is None:
                    refused[transition.transition_id] = Reason.NO_REWARD
                elif not fits(transition, max_sample_tokens):
                    refused[transition.transition_id] = Reason.OVER_LENGTH
                else:
                    trained[transition.transition_id] = credit
                    rows.setdefault(transition.attempt_id, {})[credit.row_id] = credit.value
    return Assignment(
        credits=trained,
        refused=refused,
        row_credits={attempt_id: tuple(values.values()) for attempt_id, values in rows.items()},
    )
