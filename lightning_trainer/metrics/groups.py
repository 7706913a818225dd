"""What the groups of a step were like; kept with the step even when nothing was trained."""

from collections.abc import Sequence

from lightning_trainer.credit.groups import GroupSummary
from lightning_trainer.transitions.reasons import Reason


def group_metrics(groups: Sequence[GroupSummary]) -> dict[str, float]:
    """Return counts of groups and attempts, and the mean reward of the attempts that have one."""
    rewards = [reward for group in groups for reward in group.rewards if reward is not None]
    metrics = {
        "groups/total": float(len(groups)),
        "groups/kept": float(sum(group.verdict is Reason.SAMPLED for group in groups)),
        "groups/zero_variance": float(sum(group.verdict is Reason.ZERO_VARIANCE_GROUP for group in groups)),
        "groups/low_variance": float(sum(group.verdict is Reason.LOW_VARIANCE_GROUP for group in groups)),
        "groups/refused": float(sum(group.refused_reason is not None for group in groups)),
        "groups/solved": float(sum(all(reward == 1.0 for reward in group.rewards) for group in groups)),
        "attempts/total": float(sum(group.size for group in groups)),
        "attempts/scored": float(len(rewards)),
    }
    if rewards:
        metrics["reward/mean"] = sum(rewards) / len(rewards)
    return metrics
