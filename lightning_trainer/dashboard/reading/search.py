"""Attempts that are looked for, newest first and a page at a time.

Time, task, group and step are answered by indices. Everything else is in the spans: attempts are read newest first
until the page is full or enough were looked at, and the answer says how far it came, so no question takes longer in an
old store than in a new one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dashboard.reading.summaries import Summary, SummaryCache
from lightning_trainer.report.curves import Bin, ticks_between
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import attempts as attempt_table

PAGE = 50
_AT_ONCE = 50
_SURVEYED = 200
"""Attempts that the histogram is made of, where reading them is quick."""
_MOST = 1_000
_QUICK_S = 0.08
_LONGEST_S = 0.4
_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Search:
    """Conditions; None is none. ``before`` is where the page before this one ended: (started_ns, attempt id)."""

    task: str | None = None
    """Its id, or the beginning of it."""
    group: str | None = None
    step: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    agent: str | None = None
    """Name or pattern."""
    version: str | None = None
    """``POLICY@vN``, or ``vN``."""
    outcome: str | None = None
    mode: str | None = None
    least: float | None = None
    most: float | None = None
    """Bounds of the reward; ``rewarded`` False: only attempts without one."""
    rewarded: bool | None = None
    text: str | None = None
    before: tuple[int, str] | None = None

    def fits(self, one: Summary, *, whatever_reward: bool = False) -> bool:
        """Whether a summary meets what no index answers."""
        return (
            (self.outcome is None or one.attempt.state == self.outcome)
            and (self.mode is None or one.attempt.mode == self.mode)
            and (self.agent is None or any(_like(name, self.agent) for name in one.agents))
            and (self.version is None or any(_is_version(name, self.version) for name in one.versions))
            and (self.text is None or self.text.lower() in one.text)
            and (whatever_reward or self._rewarded_so(one.reward))
        )

    def _rewarded_so(self, reward: float | None) -> bool:
        if self.rewarded is not None and self.rewarded != (reward is not None):
            return False
        if self.least is None and self.most is None:
            return True
        if reward is None:
            return False
        return (self.least is None or self.least <= reward) and (self.most is None or reward <= self.most)


@dataclass(frozen=True, slots=True)
class Found:
    rows: Sequence[Summary]
    rewards: Sequence[float]
    """Of everything that was looked at and meets all conditions but those of the reward."""
    looked_at: int
    next: tuple[int, str] | None
    """Where to go on; None where there is nothing older."""
    until_ns: int | None
    """Start of the oldest attempt that was looked at."""


def search(connection: Connection, wanted: Search, cache: SummaryCache, policies: Sequence[PolicyConfig]) -> Found:
    """Return a page of attempts."""
    began = time.monotonic()
    rows: list[Summary] = []
    rewards: list[float] = []
    looked_at, at, more = 0, wanted.before, True
    oldest = None
    full_at: tuple[int, str] | None = None
    while more:
        chunk = _next(connection, replace(wanted, before=at))
        more = len(chunk) == _AT_ONCE
        for one in cache.of(connection, chunk, policies):
            looked_at += 1
            at = (one.attempt.started_ns, one.attempt.attempt_id)
            oldest = one.attempt.started_ns
            if wanted.fits(one, whatever_reward=True) and one.reward is not None:
                rewards.append(one.reward)
            if len(rows) < PAGE and wanted.fits(one):
                rows.append(one)
                if len(rows) == PAGE:
                    full_at = at
        took_s = time.monotonic() - began
        if looked_at >= _MOST or took_s > _LONGEST_S:
            break
        if len(rows) >= PAGE and (looked_at >= _SURVEYED or took_s > _QUICK_S):
            break
    return Found(rows, rewards, looked_at, full_at or (at if more else None), oldest)


def _next(connection: Connection, wanted: Search) -> list:
    conditions = ["(started_ns, attempt_id) < (?, ?)", "started_ns <= ?"]
    values: list[object] = [*(wanted.before or (2**63 - 1, _LAST)), wanted.before[0] if wanted.before else 2**63 - 1]
    if wanted.until_ns is not None:
        conditions.append("started_ns <= ?")
        values.append(wanted.until_ns)
    if wanted.since_ns is not None:
        conditions.append("started_ns >= ?")
        values.append(wanted.since_ns)
    if wanted.task is not None:
        conditions.append("task_id >= ? AND task_id < ?")
        values += [wanted.task, wanted.task + _LAST]
    if wanted.group is not None:
        conditions.append("coalesce(group_id, task_id, rollout_id) = ?")
        values.append(wanted.group)
    if wanted.step is not None:
        conditions.append(
            "attempt_id IN (SELECT attempt_id FROM assignments"
            " WHERE policy IN (SELECT policy FROM policies) AND step = ?)"
        )
        values.append(wanted.step)
    rows = connection.execute(
        f"SELECT {attempt_table.COLUMNS} FROM attempts WHERE {' AND '.join(conditions)} "
        "ORDER BY started_ns DESC, attempt_id DESC LIMIT ?",
        (*values, _AT_ONCE),
    )
    return [attempt_table.read(row) for row in rows]


def reward_bins(rewards: Sequence[float], columns: int = 12) -> list[Bin]:
    """Return a histogram: one bin for each value where there are few of them, else equal widths between round ends."""
    if not rewards:
        return []
    ticks = ticks_between(min(rewards), max(rewards), columns)
    if len(ticks) < 2:
        return []
    counts = [0] * (len(ticks) - 1)
    width = ticks[1] - ticks[0]
    for reward in rewards:
        counts[min(len(counts) - 1, max(0, int((reward - ticks[0]) / width + 1e-9)))] += 1
    return [Bin(low, high, count) for low, high, count in zip(ticks, ticks[1:], counts, strict=False)]


def _like(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _is_version(name: str, wanted: str) -> bool:
    return name == wanted or name.rpartition("@")[2] == wanted or name.rpartition("@v")[2] == wanted
