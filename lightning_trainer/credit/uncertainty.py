"""Which groups of a step are worth training: those whose attempts differ most.

Source: Wang et al., RAGEN (arXiv 2504.20073), StarPO-S: of the groups of a step the share with the largest deviation of
rewards is kept, since groups of which the outcome is certain teach little and let training collapse.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from lightning_trainer.credit.groups import GroupSummary
from lightning_trainer.transitions.reasons import Reason

_RANKED = (Reason.SAMPLED, Reason.ZERO_VARIANCE_GROUP)


def keep_most_uncertain(groups: Sequence[GroupSummary], share: float) -> list[GroupSummary]:
    """Return the groups with new verdicts; refused ones are not counted, and one is always kept.

    Args:
        share: of the step's comparable groups, in (0, 1].
    """
    ranked = sorted(
        (group for group in groups if group.verdict in _RANKED), key=lambda group: (-group.spread, group.group_id)
    )
    kept = {group.group_id for group in ranked[: math.ceil(share * len(ranked))]}
    return [
        replace(group, verdict=Reason.LOW_VARIANCE_GROUP)
        if group.verdict is Reason.SAMPLED and group.group_id not in kept
        else group
        for group in groups
    ]
