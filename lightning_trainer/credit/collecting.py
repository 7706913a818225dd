"""When a step may start: enough groups whose attempts have all ended.

Pure: the loop asks again whenever something was stored.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from lightning_trainer.types import Attempt, RolloutMode


@dataclass(frozen=True, slots=True)
class Collection:
    """Ended attempts that no step has consumed yet, by group."""

    ready: tuple[tuple[str, tuple[Attempt, ...]], ...]
    """Groups that are complete or that nothing more is expected for, oldest completion first."""
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
) -> Collection:
    """Sort ended attempts into groups that are ready and groups that are waiting for more.

    A group is ready when ``group_size`` of its training attempts (and, where it ``needs_baseline``, one baseline) have
    ended, or when it has heard nothing for ``group_timeout_s`` seconds: a lost attempt must not hold up the others for
    ever. ``heard_ns`` says when each last heard something (``arrivals.py``); unless given, that is when its last
    attempt ended. Groups in ``expecting`` have an attempt that has ended and is held back, so there the waiting has an
    end of its own. A baseline goes with its group and makes none alone.
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
        needed = trained[:group_size]
        if needs_baseline:
            needed += [attempt for attempt in members if attempt.mode is RolloutMode.BASELINE][:1]
        if not trained:
            continue
        if len(needed) == group_size + needs_baseline:
            ready.append((max(attempt.ended_ns or 0 for attempt in needed), group_id, tuple(members)))
        elif group_id not in expecting and now_ns - heard.get(group_id, last_ns) > group_timeout_s * 1e9:
            ready.append((last_ns, group_id, tuple(members)))
        else:
            waiting[group_id] = len(trained)
    ready.sort(key=lambda entry: entry[:2])
    return Collection(tuple((group_id, members) for _, group_id, members in ready), waiting)
