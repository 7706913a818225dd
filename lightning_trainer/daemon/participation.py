"""Which ended attempts a policy's steps are made of, where several policies share a store.

A rollout may be the work of agents of several policies, and each of them consumes it once, for its own tokens. A group
is a policy's when the policy answered a call in any of its attempts: then all of them count, since an attempt that
broke off before its turn is part of the comparison too. Other groups are none of its business.
"""

from collections.abc import Sequence, Set

from lightning_trainer.types import Attempt


def concerned(attempts: Sequence[Attempt], took_part: Set[str]) -> tuple[Attempt, ...]:
    """Return the attempts of the groups that the policy took part in, in the same order.

    Args:
        took_part: ids of attempts that the policy answered calls of.
    """
    groups = {attempt.group_id for attempt in attempts if attempt.attempt_id in took_part}
    return tuple(attempt for attempt in attempts if attempt.group_id in groups)
