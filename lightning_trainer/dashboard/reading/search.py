"""The search for attempts, newest first and a page at a time.

Time, task, group and step are found by indices. Outcome and mode are in the attempt's row, everything else is in the
spans: attempts are examined newest first, for some hundredths of a second of processor time, and the result says how
far back the search got. So a search takes no longer in an old store than in a new one.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dashboard.reading.recorded_text import (
    InBytes,
    WantedName,
    WantedText,
    WantedVersion,
    possible,
    says,
)
from lightning_trainer.dashboard.reading.summaries import Summary, SummaryCache
from lightning_trainer.report.curves import Bin, ticks_between
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.types import Attempt

PAGE = 50
_ROWS_AT_ONCE, _SIFTED_AT_ONCE = 60, 500
_READ_AT_ONCE, _LOOKED_THROUGH_AT_ONCE = 10, 25
_SURVEYED = 200
"""Number of attempts that the histogram is made of, if reading them is quick."""
_QUICK_S, _LONGEST_S = 0.04, 0.06
"""Limits on processor time, so that a busy machine does not make pages shorter."""
_LONGEST_WALL_S = 0.3
"""Limit on wall-clock time."""
_EVEN_FOR_A_SHORT_PAGE_S = 0.25
"""Limit on processor time for attempts so long that a full page of them would take longer."""
_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Search:
    """The conditions of a search; None: any. ``before`` is where the previous page ended: (started_ns, attempt id)."""

    task: str | None = None
    """A task id, or the beginning of one."""
    group: str | None = None
    step: int | None = None
    policy: str | None = None
    """Whose ``step`` it is."""
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

    def row_fits(self, one: Attempt) -> bool:
        """Whether an attempt's row meets the conditions on it: outcome and mode."""
        return (self.outcome is None or one.state == self.outcome) and (self.mode is None or one.mode == self.mode)

    def summary_fits(self, one: Summary) -> bool:
        """Whether a summary meets the conditions on agent and version."""
        return (self.agent is None or any(_like(name, self.agent) for name in one.agents)) and (
            self.version is None or any(_is_version(name, self.version) for name in one.versions)
        )

    def rewarded_so(self, reward: float | None) -> bool:
        """Whether a reward meets the conditions on it; None meets no bound."""
        if self.rewarded is not None and self.rewarded != (reward is not None):
            return False
        if self.least is None and self.most is None:
            return True
        if reward is None:
            return False
        return (self.least is None or self.least <= reward) and (self.most is None or reward <= self.most)


@dataclass(frozen=True, slots=True)
class Found:
    """A page of attempts, and how far back the search got."""

    rows: Sequence[Summary]
    rewards: Sequence[float]
    """Rewards of all attempts that were looked at and meet all conditions except those on the reward."""
    looked_at: int
    next: tuple[int, str] | None
    """Where to continue; None if there is nothing older."""
    until_ns: int | None
    """Start of the oldest attempt that was looked at."""


def search(connection: Connection, wanted: Search, cache: SummaryCache, policies: Sequence[PolicyConfig]) -> Found:
    """Return a page of the newest attempts that meet the conditions; a shorter one if time runs out."""
    cache.corrections(connection, policies)  # before the clock starts: it may take longer than a page
    began, began_wall = time.thread_time(), time.monotonic()
    looking = _Looking(connection, wanted, cache, policies)
    rows: list[Summary] = []
    rewards: list[float] = []
    full_at: tuple[int, str] | None = None
    looked_at, at, oldest, more = 0, wanted.before, None, False
    for some, follow in _chunks(connection, wanted):
        for summary in looking.fitting(some):
            if summary.reward is not None:
                rewards.append(summary.reward)
            if len(rows) < PAGE and wanted.rewarded_so(summary.reward):
                rows.append(summary)
                if len(rows) == PAGE:
                    full_at = _place(summary.attempt)
        looked_at, at, oldest, more = looked_at + len(some), _place(some[-1]), some[-1].started_ns, follow
        took_s = time.thread_time() - began
        if len(rows) >= PAGE and (looked_at >= _SURVEYED or took_s > _QUICK_S):
            break
        if looked_at >= PAGE and (took_s > _LONGEST_S or time.monotonic() - began_wall > _LONGEST_WALL_S):
            break
        if took_s > _EVEN_FOR_A_SHORT_PAGE_S:
            break
    return Found(rows, rewards, looked_at, full_at or (at if more else None), oldest)


class _Looking:
    """Reads as little of each attempt as the conditions of the search need."""

    def __init__(
        self, connection: Connection, wanted: Search, cache: SummaryCache, policies: Sequence[PolicyConfig]
    ) -> None:
        self._connection = connection
        self._wanted = wanted
        self._cache = cache
        self._policies = policies
        self._text = None if wanted.text is None else WantedText(wanted.text)
        self._in_bytes: list[InBytes] = [] if self._text is None else [self._text]
        if wanted.agent is not None:
            self._in_bytes.append(WantedName(wanted.agent))
        if wanted.version is not None:
            self._in_bytes.append(WantedVersion(wanted.version))

    def fitting(self, attempts: Sequence[Attempt]) -> list[Summary]:
        """Return the summaries of the attempts that meet all conditions except those on the reward, in their order."""
        left = [one for one in attempts if self._wanted.row_fits(one)]
        if left and self._in_bytes:
            likely = possible(self._connection, left, self._in_bytes)
            left = [one for one, may in zip(left, likely, strict=True) if may]
        if self._text is not None:
            left = [one for one in left if says(self._connection, one, self._text)]
        found = self._cache.of(self._connection, left, self._policies)
        return [summary for summary in found if self._wanted.summary_fits(summary)]


def _chunks(connection: Connection, wanted: Search) -> Iterator[tuple[list[Attempt], bool]]:
    """Yield attempts newest first, a few at a time, and whether more may follow."""
    at, more = wanted.before, True
    sifted = wanted.outcome is not None or wanted.mode is not None
    looked_through = any(one is not None for one in (wanted.text, wanted.agent, wanted.version))
    at_once = _SIFTED_AT_ONCE if sifted or looked_through else _ROWS_AT_ONCE
    read_at_once = _LOOKED_THROUGH_AT_ONCE if looked_through else _READ_AT_ONCE
    while more:
        rows = _next(connection, replace(wanted, before=at), at_once)
        more = len(rows) == at_once
        # Rows that are ruled out cost little; the others are read a few at a time, so that the time limit takes effect.
        start = to_read = 0
        for end, row in enumerate(rows, 1):
            to_read += wanted.row_fits(row)
            if to_read == read_at_once or end == len(rows):
                yield rows[start:end], more or end < len(rows)
                start, to_read = end, 0
        at = _place(rows[-1]) if rows else at


def _place(attempt: Attempt) -> tuple[int, str]:
    return attempt.started_ns, attempt.attempt_id


def _next(connection: Connection, wanted: Search, limit: int) -> list[Attempt]:
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
        whose = "IN (SELECT policy FROM policies)" if wanted.policy is None else "= ?"
        conditions.append(f"attempt_id IN (SELECT attempt_id FROM assignments WHERE policy {whose} AND step = ?)")
        values += [wanted.step] if wanted.policy is None else [wanted.policy, wanted.step]
    rows = connection.execute(
        f"SELECT {attempt_table.COLUMNS} FROM attempts WHERE {' AND '.join(conditions)} "
        "ORDER BY started_ns DESC, attempt_id DESC LIMIT ?",
        (*values, limit),
    )
    return [attempt_table.read(row) for row in rows]


def reward_bins(rewards: Sequence[float], columns: int = 12) -> list[Bin]:
    """Return a histogram: bins of equal width between round ends."""
    if not rewards:
        return []
    ticks = ticks_between(min(rewards), max(rewards), columns)
    if len(ticks) < 2:
        return []
    inside: list[list[float]] = [[] for _ in ticks[1:]]
    width = ticks[1] - ticks[0]
    for reward in rewards:
        inside[min(len(inside) - 1, max(0, int((reward - ticks[0]) / width + 1e-9)))].append(reward)
    return [
        Bin(low, high, len(those), max(those, default=None))
        for low, high, those in zip(ticks, ticks[1:], inside, strict=False)
    ]


def _like(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _is_version(name: str, wanted: str) -> bool:
    return name == wanted or name.rpartition("@")[2] == wanted or name.rpartition("@v")[2] == wanted
