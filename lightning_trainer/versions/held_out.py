"""The held-out score of a version: the mean reward, over tasks, of the evaluation attempts whose calls it sampled.

A task that was tried more often than others (say, because an evaluation was interrupted and started again) counts as
much as they do: once, with the mean of its attempts. An attempt during which the version changed is left out, as is one
that lacks any of the policy's rewards. These are the policy's own rewards in every stage, so that versions of different
stages can be compared. Each attempt's verdict is kept in the store and recomputed when new data of the attempt arrives,
so an evaluation is read once and not at every query.

A mean has a standard error (E. Miller, Adding Error Bars to Evals, arXiv 2411.00640): the standard deviation of the
tasks' rewards over the root of the number of tasks. The deviation is pooled over the versions, as for a t test (G. W.
Snedecor and W. G. Cochran, Statistical Methods): a version with one task has no deviation of its own, and that of a few
tasks is often 0.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import NamedTuple

from lightning_trainer.config import PolicyConfig
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.rewards.reward_table import read_outcomes
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import cursors, evaluations, participations
from lightning_trainer.store.tables.spans import select_of_attempts
from lightning_trainer.types import Attempt, Call, Span

_AT_ONCE = 100
"""Attempts read in one transaction, which takes about a tenth of a second."""
_AT_ONCE_IN_TIME = 20
"""The same if a caller waits, so that ``within_s`` is not exceeded by much."""


_WITH_GROUPS = "verdicts LEFT JOIN attempts USING (attempt_id) WHERE policy = ?"
_GROUP = "coalesce(group_id, task_id, rollout_id, attempt_id)"
"""As ``Attempt.group_id``; the attempt's own id after the attempt was deleted."""


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """The held-out score of a version."""

    mean: float
    attempts: int
    error: float | None
    """The mean's standard error; None if no version has two tasks, so that it is unknown."""

    @property
    def rank(self) -> tuple[float, int]:
        """Return the key by which the best version is the largest: the mean minus two standard errors, which is about
        the lower end of its 95 % interval, so that one lucky task does not win. If all versions have equally many
        tasks, it orders them by the mean.
        """
        return self.mean - 2 * (self.error or 0.0), self.attempts


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one evaluation attempt."""

    version: int
    reward: float
    group: str | None = None
    """The group of all attempts at the task in that evaluation; None: this attempt is the only one."""


def verdicts(attempts: Sequence[Attempt], spans: Sequence[Span], policy: PolicyConfig) -> dict[str, Verdict]:
    """Return by attempt id the verdict of each attempt on one version; absent if it has none (yet).

    Args:
        attempts: evaluations that have ended.
        spans: all spans of these attempts.
    """
    reading = read_spans(spans)
    known = {attempt.attempt_id: attempt for attempt in attempts}
    rewards = read_outcomes(reading.evaluations, reading.calls, known, policy)
    calls: dict[str, list[Call]] = {}
    for call in reading.calls:
        if call.attempt_id in known and call.policy == policy.name:
            calls.setdefault(call.attempt_id, []).append(call)
    found: dict[str, Verdict] = {}
    for attempt_id, own in calls.items():
        reward, version = rewards.get(attempt_id), only_version(own)
        if reward is not None and version is not None:
            found[attempt_id] = Verdict(version, reward, known[attempt_id].group_id)
    return found


def only_version(calls: Iterable[Call]) -> int | None:
    """Return the version that sampled all of a policy's calls; None if there are several, or it is not known.

    A call that ended before the engine answered, because its caller hung up and tried again, does not count.
    """
    versions = {call.policy_version for call in calls if call.response_ids or call.policy_version is not None}
    return next(iter(versions)) if len(versions) == 1 else None


@dataclass(frozen=True, slots=True)
class _Slice:
    attempt_ids: tuple[str, ...]
    position: int
    found: dict[str, Verdict]


async def refresh_verdicts(store: Store, policy: PolicyConfig, *, within_s: float | None = None) -> int:
    """Read the evaluations with new data since the last time, and store their verdicts; return how many are left.

    Args:
        within_s: after how many seconds to stop; at least one slice is read, and the next call reads the rest. None:
            stop when all are read.
    """
    began, at_once = time.monotonic(), _AT_ONCE if within_s is None else _AT_ONCE_IN_TIME
    while True:
        read = await store.scan(
            lambda connection: _next_slice(connection, policy, _position(connection, policy), at_once)
        )
        if not read.attempt_ids:
            return 0
        await store.write(lambda connection, read=read: _keep(connection, policy, read))
        if within_s is not None and time.monotonic() - began >= within_s:
            return await store.scan(
                lambda connection: evaluations.count_changed(connection, _position(connection, policy))
            )


def select_scores(connection: Connection, policy: str, first: int, last: int) -> dict[int, HeldOutScore]:
    """Return the stored scores of the versions from ``first`` to ``last``; see ``refresh_verdicts``."""
    rows = connection.execute(
        f"""WITH among AS (SELECT version, avg(reward) AS reward, count(*) AS attempts
                          FROM {_WITH_GROUPS} AND version BETWEEN ? AND ? GROUP BY version, {_GROUP}),
                means AS (SELECT version, avg(reward) AS mean FROM among GROUP BY version)
           SELECT version, mean, sum(attempts), count(*), sum((reward - mean) * (reward - mean))
           FROM among JOIN means USING (version) GROUP BY version, mean""",
        (policy, first, last),
    )
    return _scores({version: _Spread(*of_version) for version, *of_version in rows})


def select_newest_scores(connection: Connection, policy: str, newest: int) -> dict[int, HeldOutScore]:
    """Return the stored scores of the newest versions that have one; see ``refresh_verdicts``."""
    versions = connection.execute(
        "SELECT DISTINCT version FROM verdicts WHERE policy = ? ORDER BY version DESC LIMIT ?", (policy, newest)
    ).fetchall()
    return select_scores(connection, policy, versions[-1][0], versions[0][0]) if versions else {}


def select_verdicts(connection: Connection, policy: PolicyConfig) -> dict[str, Verdict]:
    """Return the verdicts of all evaluations; evaluations not read before are read now, without storing verdicts."""
    position = _position(connection, policy)
    rows = connection.execute(f"SELECT attempt_id, version, reward, {_GROUP} FROM {_WITH_GROUPS}", (policy.name,))
    found = {attempt_id: Verdict(*verdict) for attempt_id, *verdict in rows if position}
    while (read := _next_slice(connection, policy, position)).attempt_ids:
        found = {attempt_id: verdict for attempt_id, verdict in found.items() if attempt_id not in read.attempt_ids}
        found |= read.found
        position = read.position
    return found


def held_out_scores(found: Mapping[str, Verdict]) -> dict[int, HeldOutScore]:
    """Return each version's mean over its tasks."""
    rewards: dict[int, dict[str, list[float]]] = {}
    for attempt_id, verdict in found.items():
        of_version = rewards.setdefault(verdict.version, {})
        of_version.setdefault(verdict.group or attempt_id, []).append(verdict.reward)
    return _scores({version: _spread([*tasks.values()]) for version, tasks in rewards.items()})


class _Spread(NamedTuple):
    mean: float
    attempts: int
    tasks: int
    squares: float
    """Sum of the squared deviations of the tasks' rewards from the mean."""


def _spread(rewards: Sequence[Sequence[float]]) -> _Spread:
    of_tasks = [fmean(of_task) for of_task in rewards]
    mean = fmean(of_tasks)
    return _Spread(mean, sum(map(len, rewards)), len(rewards), sum((reward - mean) ** 2 for reward in of_tasks))


def _scores(spreads: Mapping[int, _Spread]) -> dict[int, HeldOutScore]:
    freedom = sum(one.tasks - 1 for one in spreads.values())
    deviation = sqrt(sum(one.squares for one in spreads.values()) / freedom) if freedom else None
    return {
        version: HeldOutScore(one.mean, one.attempts, None if deviation is None else deviation / sqrt(one.tasks))
        for version, one in spreads.items()
    }


def _next_slice(connection: Connection, policy: PolicyConfig, position: int, most: int = _AT_ONCE) -> _Slice:
    changed = evaluations.select_changed(connection, position, most)
    ids = tuple(attempt_id for _, attempt_id in changed)
    if not ids:
        return _Slice((), position, {})
    attempts = attempt_table.select(connection, attempt_ids=ids)
    found = verdicts(attempts, select_of_attempts(connection, ids), policy)
    if participations.last_earlier(connection, policy.name):  # then version 0 may be that of an earlier model
        found = {
            attempt_id: verdict
            for attempt_id, verdict in found.items()
            if verdict.version > 0 or not participations.is_earlier(connection, policy.name, attempt_id)
        }
    return _Slice(ids, changed[-1][0], found)


def _keep(connection: Connection, policy: PolicyConfig, read: _Slice) -> None:
    if not _position(connection, policy):  # the first time, or with a different reward setting
        connection.execute("DELETE FROM verdicts WHERE policy = ?", (policy.name,))
    connection.executemany(
        "DELETE FROM verdicts WHERE policy = ? AND attempt_id = ?", [(policy.name, one) for one in read.attempt_ids]
    )
    connection.executemany(
        "INSERT INTO verdicts VALUES (?, ?, ?, ?)",
        [(policy.name, attempt_id, verdict.version, verdict.reward) for attempt_id, verdict in read.found.items()],
    )
    cursors.move(connection, _cursor(policy), read.position, about=_settings(policy))


def _position(connection: Connection, policy: PolicyConfig) -> int:
    return cursors.position(connection, _cursor(policy), about=_settings(policy))


def _cursor(policy: PolicyConfig) -> str:
    return f"verdicts/{policy.name}"


def _settings(policy: PolicyConfig) -> str:
    return json.dumps(dict(policy.reward_weights), sort_keys=True)
