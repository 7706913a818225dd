"""Which attempts form a group: by the user's key, by task, or by identical prompt.

The store gives an attempt the group id ``lightning.group.id``, or its task id where it has none; this is ``key``. The
other two replace it. Pure and idempotent, so the loop that collects groups and the batch that is built of them agree.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lightning_trainer.config import PolicyConfig
from lightning_trainer.token_ids import packed
from lightning_trainer.types import Attempt, Call


def regroup(attempts: Sequence[Attempt], calls: Iterable[Call], policy: PolicyConfig) -> list[Attempt]:
    """Return the attempts with the group ids that ``policy.group_by`` asks for, in the same order.

    Args:
        attempts: any.
        calls: everything that was recorded of them; looked at only for ``prompt``.
    """
    if policy.group_by == "key":
        return list(attempts)
    if policy.group_by == "task":
        return [replace(attempt, group_id=attempt.task_id) for attempt in attempts]
    keys = prompt_keys(calls, policy)
    return [
        replace(attempt, group_id=keys.get(attempt.attempt_id, no_prompt_key(attempt.attempt_id)))
        for attempt in attempts
    ]


def prompt_keys(calls: Iterable[Call], policy: PolicyConfig) -> dict[str, str]:
    """Return by attempt id the key of its first prompt: that of the earliest call of the policy's agents."""
    first: dict[str, Call] = {}
    for call in calls:
        if call.attempt_id is None or not call.prompt_ids or not policy.claims(call.agent):
            continue
        known = first.get(call.attempt_id)
        if known is None or (call.start_ns, call.call_id) < (known.start_ns, known.call_id):
            first[call.attempt_id] = call
    return {
        attempt_id: f"prompt-{hashlib.blake2b(packed(call.prompt_ids), digest_size=8).hexdigest()}"
        for attempt_id, call in first.items()
    }


def no_prompt_key(attempt_id: str) -> str:
    """Return the group id of an attempt that made no call: it can be compared with none."""
    return f"prompt-none-{attempt_id}"
