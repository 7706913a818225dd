"""Making rewards of feedback: feedback that has left quarantine is weighed, and the sum is stored as an evaluation.

The evaluation is stored in the transaction that notes it, and not at all if a source was forgotten since the feedback
was read: so ``forget --source`` finds every reward.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.samples.feedback.review import hour_began_ns
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import feedback as feedback_table
from lightning_trainer.store.worklist.settling import changes, put
from lightning_trainer.types import Span

_log = logging.getLogger(__name__)

_SHARE = 0.1
"""Share of the time that may be spent on reading feedback."""


class RewardSink(Protocol):
    """Where rewards are stored: a store, or a sink that also tells the policies' loops of them."""

    async def append_made(self, make: Callable[[Connection], Sequence[Span]]) -> list[Span]:
        """See ``MediaStore.append_made``."""
        ...


class FeedbackSettler:
    """Settles feedback when some is new, when some finds its attempt, and when some leaves quarantine."""

    def __init__(self, config: FeedbackConfig, store: Store, sink: RewardSink) -> None:
        self._config = config
        self._store = store
        self._sink = sink
        self._seen: tuple[int, int] = (0, 0)
        self._matched = False
        """Whether an attempt was found for some feedback since the last look."""
        self._next_release_ns: int | None = 0
        self._suspicious: frozenset[str] = frozenset()
        self._capped_hour_ns = -1
        """The last hour for which the log says that caps were exceeded."""

    async def run(self) -> None:
        """Settle feedback again and again, forever; if the store cannot be read or written, try again."""
        while True:
            began = time.monotonic()
            try:
                await self.settle()
            except StoreError as error:
                _log.warning("feedback cannot be settled: %s", error)
            except Exception:
                _log.exception("feedback cannot be settled; it is tried again")
            took_s = time.monotonic() - began
            await asyncio.sleep(max(self._config.settle_every_s, took_s / _SHARE))

    async def settle(self) -> int:
        """Settle the feedback that can be settled; return how many rewards were made."""
        now_ns = time.time_ns()
        self._matched |= await self._store.write(feedback_table.match) > 0
        await self._store.write(
            lambda connection: feedback_table.expire(connection, now_ns - int(self._config.remember * 1e9))
        )
        newest = await self._store.scan(feedback_table.newest)
        due = self._next_release_ns is not None and now_ns >= self._next_release_ns
        if newest == self._seen and not due and not self._matched:
            return 0
        found = await self._store.scan(lambda connection: changes(connection, self._config, now_ns))
        new: Sequence[Span] = ()
        if found.made or found.retracted:
            new = await self._sink.append_made(lambda connection: put(connection, found, now_ns))
        self._seen, self._matched, self._next_release_ns = newest, False, found.review.next_release_ns
        self._name({one.source for one in found.review.standings.values() if one.suspicious})
        self._say_capped(found.review.over_cap, hour_began_ns(now_ns))
        return len(new)

    def _name(self, suspicious: set[str]) -> None:
        """Log once for each source that its feedback does not help."""
        new = sorted(suspicious - self._suspicious)
        self._suspicious = frozenset(suspicious)
        if new:
            _log.warning(
                "feedback of %s is mostly wrong and weighs next to nothing; `lightning-trainer feedback` says more, "
                "and `lightning-trainer forget --source` takes it out",
                _listed(new),
            )

    def _say_capped(self, sources: Collection[str], hour_ns: int) -> None:
        """Log once an hour that feedback does not count: clients that sent theirs as spans were not refused."""
        if not sources or hour_ns == self._capped_hour_ns:
            return
        self._capped_hour_ns = hour_ns
        _log.warning(
            "feedback of %s exceeds the caps of this hour and does not count: [feedback] source_per_hour = %d and "
            "all_per_hour = %d; raise them if people do say so much, or list the source in trusted",
            _listed(sorted(sources)),
            self._config.source_per_hour,
            self._config.all_per_hour,
        )


def _listed(sources: Sequence[str]) -> str:
    return ", ".join(map(repr, sources[:5])) + (f" and {len(sources) - 5} more" if len(sources) > 5 else "")
