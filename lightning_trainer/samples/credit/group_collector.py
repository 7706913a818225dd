"""Which attempts form a group, which of them are complete, when a group last got one, and when a step may start.

Attempts are grouped by the user's key, by task, or by identical prompt. The store gives an attempt the group id
``lightning.group.id``, or its task id if it has none: that is ``key``. The other two replace that id. Nothing here does
I/O, and grouping is idempotent: the loop asks again whenever something was stored, and agrees with the batch that is
built.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from lightning_trainer.config import PolicyConfig
from lightning_trainer.token_ids import packed
from lightning_trainer.types import Attempt, Call, RolloutMode

# When a step may start: enough groups whose attempts have all ended.
#
# Pure: the loop asks again whenever something was stored.


@dataclass(frozen=True, slots=True)
class Collection:
    """Ended attempts that no step has consumed yet, by group."""

    ready: tuple[tuple[str, tuple[Attempt, ...]], ...]
    """Groups that are complete or expect nothing more, oldest completion first."""
    waiting: dict[str, int]
    """Ended training attempts of every group that is still being filled."""

    def next_step(self, groups_per_step: int) -> tuple[Attempt, ...] | None:
        """Return the attempts of the next step, or None when there are not enough groups yet."""
        if len(self.ready) < groups_per_step:
            return None
        return tuple(attempt for _, attempts in self.ready[:groups_per_step] for attempt in attempts)


def collect(
    attempts: Sequence[Attempt],
    *,
    group_size: int,
    group_timeout_s: float,
    now_ns: int,
    heard_ns: Mapping[str, int] | None = None,
    expecting: Set[str] = frozenset(),
    needs_baseline: bool = False,
    group_by: str = "key",
    ungrouped: Set[str] = frozenset(),
) -> Collection:
    """Sort ended attempts into groups that are ready and groups that are waiting for more.

    A group is ready when ``group_size`` of its training attempts (and, if it ``needs_baseline``, one baseline) have
    ended, or when it has heard nothing for ``group_timeout_s`` seconds: a lost attempt must not hold up the others
    forever. ``heard_ns`` says when each group last heard something (``Arrivals``); if not given, that is when its last
    attempt ended. Groups in ``expecting`` do not time out: they have an ended attempt that is held back, and that wait
    has a limit of its own. A baseline goes with its group and does not make one alone. Neither does a single attempt
    that was given no group (``ungrouped``): there is no other to compare it with, and it would take a group's place in
    a step.

    If a task or prompt comes again and again, a step takes the first complete group, and the rest waits if it makes a
    complete one too; otherwise the step takes all. A group that was named (``group_by`` is ``key``) keeps all members
    that were given to it.
    """
    heard = heard_ns or {}
    by_group: dict[str, list[Attempt]] = {}
    for attempt in sorted(attempts, key=lambda a: (a.ended_ns or 0, a.attempt_id)):
        by_group.setdefault(attempt.group_id, []).append(attempt)
    ready: list[tuple[int, str, tuple[Attempt, ...]]] = []
    waiting: dict[str, int] = {}
    for group_id, members in by_group.items():
        last_ns = members[-1].ended_ns or 0
        trained = [attempt for attempt in members if attempt.mode is RolloutMode.TRAIN]
        baselines = [attempt for attempt in members if attempt.mode is RolloutMode.BASELINE]
        needed = [*trained[:group_size], *baselines[:needs_baseline]]
        if not trained:
            continue
        if len(needed) == group_size + needs_baseline:
            named = group_by == "key" and any(attempt.task_id != group_id for attempt in members)
            rest_is_whole = len(trained) >= 2 * group_size and len(baselines) >= 2 * needs_baseline
            taken = needed if rest_is_whole and not named else members
            ready.append((max(attempt.ended_ns or 0 for attempt in needed), group_id, tuple(taken)))
        elif len(trained) == 1 and trained[0].attempt_id in ungrouped:
            waiting[group_id] = 1
        elif group_id not in expecting and now_ns - heard.get(group_id, last_ns) > group_timeout_s * 1e9:
            ready.append((last_ns, group_id, tuple(members)))
        else:
            waiting[group_id] = len(trained)
    ready.sort(key=lambda entry: entry[:2])
    return Collection(tuple((group_id, members) for _, group_id, members in ready), waiting)


# When a group last heard of one of its attempts, by the daemon's own clock.
#
# When an attempt ended says little about that: after an outage, of the daemon or of the network, attempts that ended
# long ago arrive one after the other, and a group that was judged by their end times would be torn apart when the first
# one arrives.


class Arrivals:
    """Remembers when each group last got an attempt.

    It is asked repeatedly, with all ended attempts that no step has consumed; times are in nanoseconds since 1970.
    """

    def __init__(self, now_ns: int) -> None:
        self._looked_ns = now_ns
        self._heard: dict[str, tuple[int, int]] = {}
        """By group: its number of attempts, and when the last of them arrived."""

    def last_heard(self, attempts: Sequence[Attempt], now_ns: int) -> Mapping[str, int]:
        """Return, by group, when an attempt last arrived.

        An attempt that is new since the last look is taken to have arrived right after that look, but not before it
        ended: a loop that trains for an hour does not look, and that hour counts toward the wait for attempts that were
        lost.
        """
        ends: dict[str, int] = {}
        for attempt in attempts:
            ends[attempt.group_id] = max(ends.get(attempt.group_id, 0), attempt.ended_ns or 0)
        counts = Counter(attempt.group_id for attempt in attempts)
        heard: dict[str, tuple[int, int]] = {}
        for group_id, count in counts.items():
            before, since_ns = self._heard.get(group_id, (0, 0))
            if count != before:
                since_ns = min(now_ns, max(ends[group_id], self._looked_ns))
            heard[group_id] = count, since_ns
        self._heard, self._looked_ns = heard, now_ns
        return {group_id: since_ns for group_id, (_, since_ns) in heard.items()}


# An attempt that has ended is held back until all of its spans have arrived, or until none has arrived for a while.
#
# What the numbers on the spans guarantee, and what they do not, is in docs/delivery.md.


@dataclass(frozen=True, slots=True)
class Sorted:
    """Ended attempts, by whether they may be trained on."""

    ready: tuple[Attempt, ...]
    held: Mapping[str, int]
    """By the id of each attempt that is waited for: how many spans it lacks."""
    given_up: tuple[str, ...]
    """One sentence for each attempt that is used without some of its spans from now on."""


class Completeness:
    """Remembers how many spans each attempt lacks, and since when; the caller gives the time, in seconds."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lacking: dict[str, tuple[int, float]] = {}
        self._given_up: set[str] = set()

    def sort(self, attempts: Sequence[Attempt], missing: Mapping[str, int], now_s: float) -> Sorted:
        """Sort ended attempts into those that may be trained on and those that wait for spans.

        Args:
            attempts: those that have ended and that no step has consumed.
            missing: how many spans each of them lacks; absent if none.
        """
        known = {attempt.attempt_id for attempt in attempts}
        self._lacking = {attempt_id: since for attempt_id, since in self._lacking.items() if attempt_id in known}
        self._given_up &= known
        ready: list[Attempt] = []
        held: dict[str, int] = {}
        sentences: list[str] = []
        for attempt in attempts:
            lacks = missing.get(attempt.attempt_id, 0)
            if not lacks or attempt.attempt_id in self._given_up:
                ready.append(attempt)
            elif self._is_worth_waiting(attempt.attempt_id, lacks, now_s):
                held[attempt.attempt_id] = lacks
            else:
                self._given_up.add(attempt.attempt_id)
                ready.append(attempt)
                sentences.append(
                    f"attempt {attempt.attempt_id}: {lacks} of its spans did not arrive and none has come for "
                    f"{self._timeout_s:g} s; it goes on without them (spans-missing)"
                )
        return Sorted(tuple(ready), held, tuple(sentences))

    def gave_up_on(self, attempts: Sequence[Attempt]) -> float:
        """Return how many of these attempts are used without some of their spans."""
        return float(sum(attempt.attempt_id in self._given_up for attempt in attempts))

    def _is_worth_waiting(self, attempt_id: str, lacks: int, now_s: float) -> bool:
        before, since_s = self._lacking.get(attempt_id, (-1, now_s))
        if lacks != before:
            since_s = now_s  # something came: more may come
        self._lacking[attempt_id] = (lacks, since_s)
        return now_s - since_s < self._timeout_s


def regroup(
    attempts: Sequence[Attempt],
    calls: Iterable[Call],
    policy: PolicyConfig,
    prompt_of: Callable[[Call], bytes] | None = None,
) -> list[Attempt]:
    """Return the attempts with the group ids that ``policy.group_by`` asks for, in the same order.

    Args:
        attempts: any.
        calls: everything that was recorded of them; looked at only for ``prompt``.
        prompt_of: returns what identifies a call's prompt, empty if that is not known; None: its token ids do.
    """
    if policy.group_by == "key":
        return list(attempts)
    if policy.group_by == "task":
        return [replace(attempt, group_id=attempt.task_id) for attempt in attempts]
    keys = prompt_keys(calls, policy, prompt_of)
    return [
        replace(attempt, group_id=keys.get(attempt.attempt_id, no_prompt_key(attempt.attempt_id)))
        for attempt in attempts
    ]


def prompt_keys(
    calls: Iterable[Call], policy: PolicyConfig, prompt_of: Callable[[Call], bytes] | None = None
) -> dict[str, str]:
    """Return, by attempt id, the key of the attempt's first prompt, images included.

    The first prompt is that of the earliest call of the policy's agents.
    """
    first: dict[str, tuple[int, str, bytes]] = {}
    for call in calls:
        if call.attempt_id is None or not policy.claims(call.agent):
            continue
        known = first.get(call.attempt_id)
        if known is None or (call.start_ns, call.call_id) < known[:2]:
            prompt = packed(call.prompt_ids) if prompt_of is None else prompt_of(call)
            if prompt:
                # Different images have the same placeholders.
                shown = "".join(f"\n{media.uri}" for media in call.media).encode(errors="surrogatepass")
                first[call.attempt_id] = (call.start_ns, call.call_id, prompt + shown)
    return {
        attempt_id: f"prompt-{hashlib.blake2b(prompt, digest_size=8).hexdigest()}"
        for attempt_id, (_, _, prompt) in first.items()
    }


def no_prompt_key(attempt_id: str) -> str:
    """Return the group id of an attempt that made no call: it cannot be compared with any other."""
    return f"prompt-none-{attempt_id}"
