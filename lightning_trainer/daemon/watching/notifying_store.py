"""The store, with bells: every policy's loop wakes up after each commit, and hears of rewards that came too late."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.daemon.loop.late_rewards import late_rewards
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.errors import StoreError
from lightning_trainer.store.store import Store
from lightning_trainer.types import Span

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Watcher:
    policy: str
    progress: Progress
    stored: asyncio.Event


class NotifyingStore:
    """A span sink."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watchers: list[_Watcher] = []

    def watch(self, policy: str, progress: Progress) -> asyncio.Event:
        """Return an event that is set whenever spans were stored; who waits for it clears it.

        Args:
            progress: is told of rewards that came after a step of the policy had consumed their attempt.
        """
        watcher = _Watcher(policy, progress, asyncio.Event())
        self._watchers.append(watcher)
        return watcher.stored

    async def append(self, spans: Sequence[Span]) -> int:
        new = await self._store.append_new(spans)
        if new:
            for watcher in self._watchers:
                watcher.stored.set()
            for watcher in self._watchers:
                await self._report_late(new, watcher)
        return len(new)

    async def _report_late(self, new: Sequence[Span], watcher: _Watcher) -> None:
        try:
            count, sentence = await late_rewards(self._store, new, policy=watcher.policy)
        except StoreError as error:
            _log.warning("cannot tell whether a reward came too late: %s", error)  # it is stored all the same
            return
        if sentence is not None:
            watcher.progress.late_rewards += count
            watcher.progress.say(sentence)
