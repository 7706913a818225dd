"""The ended attempts that the next step may take, sorted into groups: asked for again and again while a step waits.

If policies share a store, a rollout may be the work of agents of several of them, and each policy consumes it once, for
its own tokens. A group is a policy's if the policy answered a call in any of its attempts, or if they were made for the
policy (by a runner, which waits for its groups to be taken). Then all of the attempts count, since one that broke off
before the policy's turn is part of the comparison, too. The policy ignores all other groups.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.ingest.calls import server_of
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.credit.group_collector import (
    Arrivals,
    Collection,
    Completeness,
    collect,
    no_prompt_key,
    prompt_keys,
    regroup,
)
from lightning_trainer.samples.transitions.eligibility import with_trusted
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import cursors, participations
from lightning_trainer.store.worklist.waiting import WaitingAttempt, of_policy
from lightning_trainer.types import Attempt, RolloutMode, Span

_log = logging.getLogger(__name__)

_MOST_DROPPED = 1000


class Worklist:
    """The attempts that wait for one policy; a look costs nothing for attempts that were taken or never will be."""

    def __init__(self, policy: PolicyConfig, *, store: Store, progress: Progress, one_of_several: bool = False) -> None:
        """``one_of_several``: attempts that only other policies took part in are theirs."""
        self._policy = policy
        self._store = store
        self._progress = progress
        # What was recorded without the policy is mostly not its own: of that, too, it takes what it had a part in.
        self._took_part = one_of_several or policy.train_recorded
        self._trusted_calls = TrustedCalls(policy, store)
        self._grouping = Grouping(policy, store)
        self._completeness = Completeness(policy.span_timeout_s)
        self._arrivals = Arrivals(time.time_ns())
        self._enrolled = False
        self.waiting = 0
        """How many attempts were looked at the last time."""
        self.dropped: tuple[Attempt, ...] = ()
        """Waiting attempts that someone took out: the next step accounts for their tokens, whatever their group."""

    def gave_up_on(self, attempts: Sequence[Attempt]) -> float:
        """Return how many of these go on without some of their spans."""
        return self._completeness.gave_up_on(attempts)

    async def enroll(self) -> None:
        """Have attempts that end wait for the policy: from then on they are kept until a step takes them.

        Raises:
            StoreError: the store cannot be written.
        """
        if not self._enrolled:
            await self._store.enroll(self._policy.name, earlier=self._policy.train_recorded)
            self._enrolled = True

    async def collect(self, needs_baseline: bool) -> Collection:
        """Look at the attempts that wait, and let go those that no step wants for now, until something of their group
        or task arrives.

        Raises:
            StoreError: the store cannot be read or written.
        """
        policy = self._policy.name
        await self.enroll()
        if self._took_part:
            await self._trusted_calls.note()
        waiting = await self._store.waiting_attempts(policy)
        self.waiting = len(waiting)
        self.dropped = tuple(w.attempt for w in waiting if w.attempt.mode is RolloutMode.DROPPED)[:_MOST_DROPPED]
        wanted = (RolloutMode.TRAIN, RolloutMode.BASELINE) if needs_baseline else (RolloutMode.TRAIN,)
        mine = [one for one in waiting if one.attempt.mode in wanted]
        ended = await self._of_this_policy(mine)
        arrived = self._completeness.sort(
            ended, {one.attempt.attempt_id: one.lacking for one in mine if one.lacking}, time.monotonic()
        )
        for sentence in arrived.given_up:
            self._progress.say(sentence)
            _log.warning("%s", sentence)
        self._progress.held_attempts = dict(arrived.held)
        now_ns = time.time_ns()
        ungrouped = {one.attempt.attempt_id for one in waiting if one.attempt.group_id == one.task_id}
        await self._let_go(waiting, ended, ungrouped, now_ns)
        return collect(
            arrived.ready,
            group_size=self._policy.group_size,
            group_timeout_s=self._policy.group_timeout_s,
            now_ns=now_ns,
            heard_ns=self._arrivals.last_heard(ended, now_ns),
            expecting={attempt.group_id for attempt in ended if attempt.attempt_id in arrived.held},
            needs_baseline=needs_baseline,
            group_by=self._policy.group_by,
            ungrouped=ungrouped,
        )

    async def _of_this_policy(self, waiting: Sequence[WaitingAttempt]) -> list[Attempt]:
        """Return the attempts, grouped as the policy asks for it, of those groups that it had a part in."""
        if not self._took_part:
            return await self._grouping.regrouped([one.attempt for one in waiting])
        mine = {one.attempt.attempt_id for one in waiting if one.took_part}
        near = [one.attempt for one in of_policy(waiting)]
        return list(concerned(await self._grouping.regrouped(near), mine))

    async def _let_go(
        self, waiting: Sequence[WaitingAttempt], ended: Sequence[Attempt], ungrouped: Set[str], now_ns: int
    ) -> None:
        """Let go those that have waited for longer than a group waits and are in no group that a step would take."""
        trained = [attempt for attempt in ended if attempt.mode is RolloutMode.TRAIN]
        sizes = Counter(attempt.group_id for attempt in trained)
        groups = {
            attempt.group_id
            for attempt in trained
            if sizes[attempt.group_id] > 1 or attempt.attempt_id not in ungrouped
        }
        of_a_group = {attempt.attempt_id for attempt in ended if attempt.group_id in groups}
        patience_ns = int(self._policy.group_timeout_s * 1e9)
        idle = {
            one.attempt.attempt_id
            for one in waiting
            if one.attempt.attempt_id not in of_a_group
            and one.attempt.mode is not RolloutMode.DROPPED
            and now_ns - one.since_ns > patience_ns
        }
        await self._store.let_go(self._policy.name, idle)


class Grouping:
    """Groups ended attempts as the policy asks for it, before a step is built.

    The key of a group may be in the spans of its attempts (the first prompt). An attempt's spans are read once, when it
    is first seen to have ended, and its key is forgotten once it is consumed.
    """

    def __init__(self, policy: PolicyConfig, store: Store) -> None:
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


def concerned(attempts: Sequence[Attempt], took_part: Set[str]) -> tuple[Attempt, ...]:
    """Return the attempts of the groups that the policy took part in, in the same order.

    Args:
        took_part: ids of attempts that the policy answered calls of, or that were made for it.
    """
    groups = {attempt.group_id for attempt in attempts if attempt.attempt_id in took_part}
    return tuple(attempt for attempt in attempts if attempt.group_id in groups)


class TrustedCalls:
    """Notes which attempts have calls answered by an engine that the policy trusts; those of the gateway come noted.

    How far it has come is stored; if the trusted engines in the configuration change, it starts over with all spans.
    """

    def __init__(self, policy: PolicyConfig, store: Store) -> None:
        self._policy = policy
        self._store = store
        self._cursor = f"trusted/{policy.name}"
        self._settings = json.dumps([one.model_dump(mode="json") for one in policy.trusted], sort_keys=True)
        self._seen: int | None = None

    async def note(self) -> None:
        """Look at what was stored since the last time."""
        if not self._policy.trusted:
            return
        if self._seen is None:
            position = partial(cursors.position, name=self._cursor, about=self._settings)
            self._seen = await self._store.scan(lambda connection: position(connection))
        while True:
            find = partial(participations.find, takes_part=self._takes_part, after=self._seen)
            found, last = await self._store.scan(find)
            if last == self._seen:
                return
            await self._store.take_part(self._policy.name, found)
            move = partial(cursors.move, name=self._cursor, position=last, about=self._settings)
            await self._store.write(lambda connection, move=move: move(connection))
            self._seen = last  # only now: what the store refused is looked at again

    def _takes_part(self, span: Span) -> bool:
        server, model = server_of(span)
        if server is None or model is None or not any(one.serves(server, model) for one in self._policy.trusted):
            return False
        return any(call.policy == self._policy.name for call in with_trusted(read_spans([span]).calls, self._policy))
