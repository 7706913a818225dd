"""The baseline of a group: what a greedy attempt at its task earned (ReMax, Li et al., arXiv 2310.10505).

Its attempt has the mode ``baseline`` and is never trained, so the baseline does not depend on what is trained, which is
all that an unbiased gradient asks of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from lightning_trainer.types import Attempt, AttemptState, RolloutMode


@dataclass(frozen=True, slots=True)
class Baselines:
    """The baseline rewards of some groups, and the baseline attempts that gave none."""

    of_groups: Mapping[str, float] = field(default_factory=dict)
    """By group id, in reward units: the mean where a group has several."""
    unscored: frozenset[str] = frozenset()
    """Baseline attempts without a reward, of groups that have no other."""


def read_baselines(attempts: Iterable[Attempt], rewards: Mapping[str, float | None]) -> Baselines:
    """Return the baselines of the groups that ended baseline attempts are in.

    Args:
        attempts: of any mode.
        rewards: by attempt id, of the attempts as a whole.
    """
    by_group: dict[str, list[str]] = {}
    for attempt in attempts:
        if attempt.mode is RolloutMode.BASELINE and attempt.state is not AttemptState.RUNNING:
            by_group.setdefault(attempt.group_id, []).append(attempt.attempt_id)
    of_groups: dict[str, float] = {}
    unscored: set[str] = set()
    for group_id, attempt_ids in by_group.items():
        if scored := [reward for attempt_id in attempt_ids if (reward := rewards.get(attempt_id)) is not None]:
            of_groups[group_id] = fmean(scored)
        else:
            unscored.update(attempt_ids)
    return Baselines(of_groups, frozenset(unscored))
