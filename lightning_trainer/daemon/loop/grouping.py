"""The groups of ended attempts as the policy asks for them, before a step is built.

What a group is known by may be in the spans of its attempts (the first prompt). They are read once an attempt, when it
is first seen to have ended, and forgotten once it is consumed.
"""

from collections.abc import Sequence
from dataclasses import replace

from lightning_trainer.config import PolicyConfig
from lightning_trainer.credit.grouping import no_prompt_key, prompt_keys, regroup
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.types import Attempt


class Grouping:
    """Remembers the prompt keys of attempts that wait for their group."""

    def __init__(self, policy: PolicyConfig, store: SqliteStore) -> None:
        self._policy = policy
        self._store = store
        self._keys: dict[str, str] = {}

    async def regrouped(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return the attempts with the group ids that ``policy.group_by`` asks for."""
        if self._policy.group_by != "prompt":
            return regroup(attempts, (), self._policy)
        waiting = {attempt.attempt_id for attempt in attempts}
        self._keys = {attempt_id: key for attempt_id, key in self._keys.items() if attempt_id in waiting}
        if new := sorted(waiting - self._keys.keys()):
            calls = read_spans(await self._store.spans_of_attempts(new)).calls
            found = prompt_keys(calls, self._policy)
            self._keys.update({attempt_id: found.get(attempt_id, no_prompt_key(attempt_id)) for attempt_id in new})
        return [replace(attempt, group_id=self._keys[attempt.attempt_id]) for attempt in attempts]
