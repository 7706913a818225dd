"""The store with notifications: a commit wakes every policy's loop, and rewards that came too late are reported."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lightning_instrumentation import semconv

from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.errors import StoreError
from lightning_trainer.samples.feedback.entries import is_feedback
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.store import Store
from lightning_trainer.types import AttributeValue, Span

_log = logging.getLogger(__name__)
_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Watcher:
    policy: str
    progress: Progress
    stored: asyncio.Event


class NotifyingStore:
    """A span sink that tells watchers what it stores."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watchers: list[_Watcher] = []

    def watch(self, policy: str, progress: Progress) -> asyncio.Event:
        """Return an event that is set whenever spans were stored; the waiting task clears it.

        Args:
            progress: is told of rewards that came after a step of the policy had consumed their attempt.
        """
        watcher = _Watcher(policy, progress, asyncio.Event())
        self._watchers.append(watcher)
        return watcher.stored

    async def append(self, spans: Sequence[Span]) -> int:
        """See ``SpanSink``. If spans are new, wakes every policy's loop and reports rewards that came too late."""
        new = await self._store.append_new(spans)
        await self._tell(new)
        return len(new)

    async def append_made(self, make: Callable[[Connection], Sequence[Span]]) -> list[Span]:
        """See ``MediaStore.append_made``; watchers are told as in :meth:`append`."""
        new = await self._store.append_made(make)
        await self._tell(new)
        return new

    async def _tell(self, new: Sequence[Span]) -> None:
        if not new:
            return
        for watcher in self._watchers:
            watcher.stored.set()
        for watcher in self._watchers:
            await self._report_late(new, watcher)

    async def _report_late(self, new: Sequence[Span], watcher: _Watcher) -> None:
        try:
            count, sentence = await late_rewards(self._store, new, policy=watcher.policy)
        except StoreError as error:
            _log.warning("cannot tell whether a reward came too late: %s", error)  # it is stored all the same
            return
        if sentence is not None:
            watcher.progress.late_rewards += count
            watcher.progress.say(sentence)


async def late_rewards(store: Store, spans: Sequence[Span], *, policy: str | None = None) -> tuple[int, str | None]:
    """Return how many attempts got a reward too late, and a sentence about them; None if there are none.

    Such rewards are stored and reported, and never trained: by then the batch is on disk, and a repeat of it must give
    the same weights. Until an attempt is assigned to a step nothing is computed from it, so a reward that arrives after
    its rollout has ended simply counts.

    Args:
        spans: those that were stored just now, each for the first time.
        policy: the policy whose steps count; None: any.
    """
    attempt_ids: set[str] = set()
    rollout_ids: set[str] = set()
    response_ids: set[str] = set()
    for span in spans:
        for event in span.events:
            if event.name != semconv.EVALUATION_EVENT or is_feedback({**span.attributes, **event.attributes}):
                continue  # feedback is a reward when it has been settled
            # One name is enough; the event is more exact than the span that carries it.
            for name, found in (
                (semconv.ATTEMPT_ID, attempt_ids),
                (semconv.RESPONSE_ID, response_ids),
                (semconv.ROLLOUT_ID, rollout_ids),
            ):
                if text := _text(event.attributes.get(name)) or _text(span.attributes.get(name)):
                    found.add(text)
                    break
    if not (attempt_ids or rollout_ids or response_ids):
        return 0, None
    consumed = await store.consumed(
        attempt_ids=attempt_ids, rollout_ids=rollout_ids, response_ids=response_ids, policy=policy
    )
    if not consumed:
        return 0, None
    named = ", ".join(f"{attempt_id} (step {step})" for attempt_id, step in list(consumed.items())[:_NAMED])
    more = f" and {len(consumed) - _NAMED} more" if len(consumed) > _NAMED else ""
    return len(consumed), (
        f"rewards came after their attempts had been assigned to a step: {named}{more}; they are stored and not "
        "trained. If that happens often, raise reward_wait_s"
    )


def _text(value: AttributeValue | None) -> str | None:
    return value if isinstance(value, str) and value else None
