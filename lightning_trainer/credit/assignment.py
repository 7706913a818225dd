"""The credits of one group, and which of its transitions can be trained with them.

Credit is worked out over all transitions before any is left out: a call that is too long to train still happened, and
what came after it still counts for what came before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_trainer.credit.groups import Peers
from lightning_trainer.credit.scheme import CreditScheme
from lightning_trainer.transitions.choices import chosen
from lightning_trainer.transitions.limits import Limit
from lightning_trainer.transitions.reasons import Reason
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class Assignment:
    """Every transition of the group is in exactly one of the first two."""

    credits: Mapping[str, Credit]
    """By transition id: what can be trained; their values are numbers."""
    refused: Mapping[str, Reason]
    """By transition id: what cannot, and why."""
    row_credits: Mapping[str, Mapping[Peers, tuple[float, ...]]]
    """By attempt id, and by whom they are compared with: one value for each row that has something to train."""


def assign(trajectories: Sequence[Trajectory], scheme: CreditScheme, limit: Limit) -> Assignment:
    """Run a scheme over the trajectories of one group.

    Raises:
        CreditAssignmentError: the scheme cannot be applied.
    """
    trained: dict[str, Credit] = {}
    refused: dict[str, Reason] = {}
    rows: dict[str, dict[Peers, dict[str, float]]] = {}
    for trajectory, credits_T in zip(trajectories, scheme(trajectories), strict=True):
        before: Credit | None = None
        for transition, credit in zip(trajectory.transitions, credits_T, strict=True):
            if credit.value is None:
                refused[transition.transition_id] = Reason.NO_REWARD
            elif not (kept := limit.trainable(transition)):
                refused[transition.transition_id] = Reason.OVER_LENGTH
            elif not chosen(transition, kept):
                refused[transition.transition_id] = Reason.NO_CHOICE
            else:
                trained[transition.transition_id] = credit
                if credit is before:
                    continue  # many transitions share one, and it is one row
                before = credit
                own = rows.setdefault(transition.attempt_id, {}).setdefault((trajectory.agent, credit.peers), {})
                own[credit.row_id] = credit.value
    return Assignment(
        credits=trained,
        refused=refused,
        row_credits={
            attempt_id: {peers: tuple(values.values()) for peers, values in own.items()}
            for attempt_id, own in rows.items()
        },
    )


def refuse_all(trajectories: Sequence[Trajectory], reason: Reason) -> Assignment:
    """Return the assignment of a group of which nothing can be trained."""
    steps = (step for trajectory in trajectories for step in trajectory.transitions)
    return Assignment({}, {step.transition_id: reason for step in steps}, {})
