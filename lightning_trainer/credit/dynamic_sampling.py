"""Dynamic sampling: a step is filled with further groups until enough of them have something to teach.

Source: Yu et al., DAPO (arXiv 2503.14476), section 3.2. Groups without spread are left out, and without this a step
shrinks with them.
"""

from collections.abc import Sequence

from lightning_trainer.config import PolicyConfig
from lightning_trainer.credit.groups import GroupSummary
from lightning_trainer.transitions.reasons import Reason


def groups_wanted(policy: PolicyConfig, taken: int, groups: Sequence[GroupSummary]) -> int:
    """Return how many groups the step should take; ``taken`` when it has enough or may not take more.

    Args:
        taken: groups that the step has now.
        groups: what became of them.
    """
    algorithm = policy.algorithm
    if not algorithm.dynamic_sampling:
        return taken
    short = policy.groups_per_step - sum(group.verdict is Reason.SAMPLED for group in groups)
    return max(taken, min(taken + short, algorithm.max_sampling_rounds * policy.groups_per_step))
