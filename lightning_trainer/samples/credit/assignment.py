"""The credits of one group, and which of its transitions can be trained with them.

Credit is worked out over all calls before any is left out: a call that cannot be trained still happened, and what came
after it still counts for what came before. So no call's credit depends on which of the others can be trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightning_trainer.samples.credit.groups import Peers
from lightning_trainer.samples.credit.schemes.scheme import CreditScheme
from lightning_trainer.samples.transitions.length_limit import Limit, chosen
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Credit, Trajectory


@dataclass(frozen=True, slots=True)
class Assignment:
    """What can be trained: every transition of the group that is not a gap is in ``credits`` or in ``refused``."""

    credits: Mapping[str, Credit]
    """By transition id: what can be trained; their values are numbers."""
    refused: Mapping[str, Reason]
    """By transition id: why a transition cannot be trained."""
    row_credits: Mapping[str, Mapping[Peers, tuple[float, ...]]]
    """By attempt id, then by the peers that the rows are compared with: one value for each row that has something to
    train; of a scheme that gives rewards, also for each other row with the same peers."""
    passed_on: Mapping[str, float] = field(default_factory=dict)
    """By transition id: rewards of the calls that are not trained, if the scheme gives rewards."""


def assign(
    trajectories: Sequence[Trajectory], scheme: CreditScheme, limit: Limit, *, gives_rewards: bool = False
) -> Assignment:
    """Run a scheme over the trajectories of one group.

    Args:
        gives_rewards: whether the scheme gives the calls' own rewards, from which advantages are computed later. Those
            of calls that are not trained are then passed on, and count in what an attempt earned.

    Raises:
        CreditAssignmentError: the scheme cannot be applied.
    """
    trained: dict[str, Credit] = {}
    refused: dict[str, Reason] = {}
    passed_on: dict[str, float] = {}
    rows: dict[str, dict[Peers, dict[str, float]]] = {}
    for trajectory, credits_T in zip(trajectories, scheme(trajectories), strict=True):
        not_trained: dict[Peers, dict[str, float]] = {}
        before: Credit | None = None
        for transition, credit in zip(trajectory.transitions, credits_T, strict=True):
            fits = 0 if transition.gap else limit.trainable(transition)
            if gives_rewards and credit.value is not None and not chosen(transition, fits):
                passed_on[transition.transition_id] = credit.value
                not_trained.setdefault((trajectory.agent, credit.peers), {})[credit.row_id] = credit.value
            if transition.gap:
                continue
            if credit.value is None:
                refused[transition.transition_id] = Reason.NO_REWARD
            elif not fits:
                refused[transition.transition_id] = Reason.OVER_LENGTH
            elif not chosen(transition, fits):
                refused[transition.transition_id] = Reason.NO_CHOICE
            else:
                trained[transition.transition_id] = credit
                if credit is before:
                    continue  # many transitions share one credit, which is one row
                before = credit
                own = rows.setdefault(transition.attempt_id, {}).setdefault((trajectory.agent, credit.peers), {})
                own[credit.row_id] = credit.value
        for peers, values in not_trained.items():
            if (own := rows.get(trajectory.attempt.attempt_id, {}).get(peers)) is not None:
                own.update(values)
    return Assignment(
        credits=trained,
        refused=refused,
        row_credits={
            attempt_id: {peers: tuple(values.values()) for peers, values in own.items()}
            for attempt_id, own in rows.items()
        },
        passed_on=passed_on,
    )


def refuse_all(trajectories: Sequence[Trajectory], reason: Reason) -> Assignment:
    """Return the assignment of a group in which nothing can be trained."""
    steps = (step for trajectory in trajectories for step in trajectory.transitions)
    return Assignment({}, {step.transition_id: reason for step in steps if not step.gap}, {})
