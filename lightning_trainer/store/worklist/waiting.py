"""Ended attempts that a step of a policy may still take: a maintained list, so that history need not be scanned.

An attempt is added when it ends, for every enrolled policy, and removed by the step that consumes it. Evaluations and
retried attempts are never on the list, nor are attempts from before the policy's first start, unless the policy is
enrolled for them. An attempt that no step wants for now (its group is another policy's, or a baseline alone) is
released: it rests at no cost, and wakes when something of its group or task arrives.
"""

import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lightning_trainer.store.connection import ALL as EVERY
from lightning_trainer.store.connection import Connection, has_table
from lightning_trainer.store.tables import attempts
from lightning_trainer.types import Attempt

ALL = "all"
"""The policy is enrolled for attempts from before its first start, too."""
LATER = "later"
_LEFT = "left "
"""Prefix to one of these two: the policy is not configured now, or is frozen."""
_NOTED = f"enrolled IN ('{ALL}', '{LATER}')"
_GROUP = "coalesce(group_id, task_id, rollout_id)"
_TASK = "coalesce(task_id, rollout_id)"
_PUT = f"""INSERT INTO waiting(policy, attempt_id, group_key, task_key, since_ns)
    SELECT policies.policy, attempts.attempt_id, {_GROUP}, {_TASK}, :now_ns FROM attempts, policies
    WHERE {{which}} AND {_NOTED} AND ended_ns IS NOT NULL
    AND coalesce(mode, 'train') IN ('train', 'baseline')
    AND NOT EXISTS (SELECT 1 FROM expired WHERE expired.attempt_id = attempts.attempt_id)
    AND NOT EXISTS (SELECT 1 FROM assignments WHERE assignments.attempt_id = attempts.attempt_id
                    AND assignments.policy = policies.policy)
    AND (enrolled = '{ALL}' OR last_seq = 0 OR NOT EXISTS (SELECT 1 FROM spans
         WHERE spans.attempt_id = attempts.attempt_id AND seq <= last_seq))
    ON CONFLICT DO NOTHING"""
_PUT_ENDED = _PUT.format(which="attempts.attempt_id IN (SELECT value FROM json_each(:attempt_ids))")
_PUT_ALL = _PUT.format(which="policies.policy = :policy")


@dataclass(frozen=True, slots=True)
class WaitingAttempt:
    """An ended attempt that no step of the policy has consumed."""

    attempt: Attempt
    task_id: str
    since_ns: int
    """Since when it waits, by our clock."""
    lacking: int
    """Number of missing spans."""
    took_part: bool
    """Whether the policy answered a call of the attempt, or the attempt was made for the policy."""


def ended(connection: Connection, attempt_ids: Collection[str]) -> None:
    """Add attempts that have just ended, and wake resting attempts of their groups and tasks."""
    if not attempt_ids:
        return
    asked = {"attempt_ids": json.dumps(sorted(attempt_ids)), "now_ns": time.time_ns()}
    connection.execute("DELETE FROM waiting WHERE attempt_id IN (SELECT value FROM json_each(:attempt_ids))", asked)
    connection.execute(_PUT_ENDED, asked)
    if connection.execute("SELECT 1 FROM waiting WHERE resting = 1 LIMIT 1").fetchone() is None:
        return
    rows = connection.execute(
        """SELECT policy, group_key, task_key FROM waiting
           WHERE attempt_id IN (SELECT value FROM json_each(:attempt_ids))""",
        asked,
    ).fetchall()
    _wake(connection, rows)


def heard_of(connection: Connection, seen: Iterable[tuple[str, str]]) -> None:
    """Wake resting attempts in the groups and tasks of attempts that a policy now takes part in."""
    rows = []
    for policy, attempt_id in seen:
        known = connection.execute(f"SELECT {_GROUP}, {_TASK} FROM attempts WHERE attempt_id = ?", (attempt_id,))
        rows += [(policy, group, task) for group, task in known]
    _wake(connection, rows)


def _wake(connection: Connection, rows: Iterable[tuple[str, str, str]]) -> None:
    for policy, group, task in set(rows):
        for column, key in (("group_key", group), ("task_key", task)):
            connection.execute(
                f"UPDATE waiting SET resting = 0 WHERE policy = ? AND {column} = ? AND resting = 1", (policy, key)
            )


def enroll(connection: Connection, policy: str, *, earlier: bool) -> None:
    """Start to maintain the list for a policy; idempotent. The first time it scans all attempts.

    Args:
        earlier: also for attempts that had begun before the policy was first started.
    """
    wanted = ALL if earlier else LATER
    connection.execute("INSERT INTO policies(policy, last_seq) VALUES (?, 0) ON CONFLICT DO NOTHING", (policy,))
    (enrolled,) = connection.execute("SELECT enrolled FROM policies WHERE policy = ?", (policy,)).fetchone()
    if enrolled == wanted:
        return
    connection.execute("UPDATE policies SET enrolled = ? WHERE policy = ?", (wanted, policy))
    connection.execute("DELETE FROM waiting WHERE policy = ?", (policy,))
    connection.execute(_PUT_ALL, {"policy": policy, "now_ns": time.time_ns()})


def enroll_again(connection: Connection) -> None:
    """Have each policy's next start scan all attempts, because the list was lost."""
    connection.execute(f"UPDATE policies SET enrolled = NULL WHERE {_NOTED}")


def stay_out(connection: Connection, policy: str) -> None:
    """Let the list of a policy that is frozen from its first start begin when it is no longer frozen (``only_for``)."""
    connection.execute(
        "UPDATE policies SET enrolled = ? WHERE policy = ? AND enrolled IS NULL", (_LEFT + LATER, policy)
    )


def only_for(connection: Connection, policies: Collection[str]) -> None:
    """Maintain the list only for these policies from now on: no other policy runs that could take attempts. A policy
    that comes back continues with the attempts that waited for it when it left, and those that end from then on."""
    those = json.dumps(sorted(policies))
    connection.execute(
        f"""UPDATE policies SET enrolled = ?1 || enrolled WHERE {_NOTED}
            AND policy NOT IN (SELECT value FROM json_each(?2))""",
        (_LEFT, those),
    )
    connection.execute(
        "UPDATE policies SET enrolled = replace(enrolled, ?1, '') WHERE policy IN (SELECT value FROM json_each(?2))",
        (_LEFT, those),
    )


def select(connection: Connection, policy: str) -> list[WaitingAttempt]:
    """Return the attempts on the list that do not rest, oldest end first: to be trained, baselines, and dropped."""
    rows = connection.execute(
        f"""SELECT {attempts.COLUMNS}, {_TASK}, since_ns,
            (SELECT coalesce(sum(started - arrived), 0) FROM arrivals
             WHERE arrivals.attempt_id = attempts.attempt_id AND arrived < started),
            EXISTS (SELECT 1 FROM participations WHERE participations.policy = waiting.policy
                    AND participations.attempt_id = attempts.attempt_id)
            FROM waiting CROSS JOIN attempts
            WHERE attempts.attempt_id = waiting.attempt_id AND waiting.policy = ? AND resting = 0
            ORDER BY ended_ns, attempts.attempt_id""",
        (policy,),
    )
    return [
        WaitingAttempt(attempts.read(tuple(row)), task, since_ns, lacking, bool(took_part))
        for *row, task, since_ns, lacking, took_part in rows
    ]


def wanted(connection: Connection, attempt_ids: Collection[str]) -> set[str]:
    """Return those of the attempts that wait, resting or not, for a policy that took part in their group."""
    rows = connection.execute(
        f"""SELECT DISTINCT waiting.attempt_id FROM waiting WHERE attempt_id IN (SELECT value FROM json_each(?))
            AND EXISTS (SELECT 1 FROM attempts JOIN participations ON participations.attempt_id = attempts.attempt_id
                        WHERE {_GROUP} = waiting.group_key AND participations.policy = waiting.policy)""",
        (json.dumps(sorted(attempt_ids)),),
    )
    return {attempt_id for (attempt_id,) in rows}


def of_policy(waiting: Sequence[WaitingAttempt]) -> list[WaitingAttempt]:
    """Return the attempts that share their group or task with an attempt in which the policy took part."""
    groups = {one.attempt.group_id for one in waiting if one.took_part}
    tasks = {one.task_id for one in waiting if one.took_part}
    return [one for one in waiting if one.attempt.group_id in groups or one.task_id in tasks]


def count_lost(
    connection: Connection,
    policy: str,
    prefix: str,
    *,
    group_size: int,
    after: str | None = None,
    limit: int | None = None,
) -> dict[str, int]:
    """Return, by group id, the number of ``train`` attempts of whole groups that no step of the policy will take: each
    attempt was dropped, its spans are deleted, or it rests. Empty for a policy whose list is not maintained.

    Args:
        prefix: only groups whose id begins with this.
        group_size: a group with fewer ended attempts may still be filled.
        after: only groups after this one, in order of id.
        limit: maximum number of groups.
    """
    behind = after is not None and after >= prefix
    rows = connection.execute(
        f"""SELECT {_GROUP} AS "group", count(*) FROM attempts
            WHERE {_GROUP} {">" if behind else ">="} :first AND {_GROUP} < :beyond
            AND ended_ns IS NOT NULL AND coalesce(mode, 'train') = 'train'
            AND EXISTS (SELECT 1 FROM policies WHERE policy = :policy AND {_NOTED})
            GROUP BY 1 HAVING count(*) >= :group_size AND max(CASE
                WHEN EXISTS (SELECT 1 FROM drops WHERE drops.attempt_id = attempts.attempt_id) THEN 0
                WHEN EXISTS (SELECT 1 FROM assignments WHERE assignments.attempt_id = attempts.attempt_id
                             AND assignments.policy = :policy) THEN 1
                WHEN EXISTS (SELECT 1 FROM waiting WHERE waiting.attempt_id = attempts.attempt_id
                             AND waiting.policy = :policy AND resting = 0) THEN 1
                ELSE 0 END) = 0
            ORDER BY 1 LIMIT :limit""",
        {
            "policy": policy,
            "first": after if behind else prefix,
            "beyond": prefix + "\U0010ffff",
            "group_size": group_size,
            "limit": EVERY if limit is None else limit,
        },
    )
    return dict(rows.fetchall())


def is_enrolled(connection: Connection, policy: str) -> bool:
    """Whether the list is maintained for a policy."""
    if not has_table(connection, "waiting"):
        return False  # an earlier schema, opened read-only
    noted = f"SELECT 1 FROM policies WHERE policy = ? AND {_NOTED}"
    return connection.execute(noted, (policy,)).fetchone() is not None


def passed_by(connection: Connection, policy: str, attempt_id: str, *, earlier: bool) -> bool:
    """Whether no step will consume an ended attempt that none has consumed yet: it ended while the policy was away.

    Args:
        earlier: as for ``enroll``; if it is another value than before, the policy's next start scans all attempts.
    """
    if not has_table(connection, "waiting"):
        return False  # an earlier schema, opened read-only
    kept = ALL if earlier else LATER
    row = connection.execute(
        """SELECT 1 FROM policies WHERE policy = ?1 AND enrolled IN (?3, ?4)
           AND NOT EXISTS (SELECT 1 FROM waiting WHERE waiting.policy = ?1 AND attempt_id = ?2)""",
        (policy, attempt_id, kept, _LEFT + kept),
    ).fetchone()
    return row is not None


def let_go(connection: Connection, policy: str, attempt_ids: Collection[str]) -> None:
    """Let attempts rest until something of their group or task arrives."""
    connection.executemany(
        "UPDATE waiting SET resting = 1 WHERE policy = ? AND attempt_id = ?",
        [(policy, attempt_id) for attempt_id in sorted(attempt_ids)],
    )


def taken(connection: Connection, policy: str, attempt_ids: Iterable[str]) -> None:
    """Remove attempts from the list: a step of the policy has consumed them."""
    connection.executemany(
        "DELETE FROM waiting WHERE policy = ? AND attempt_id = ?", [(policy, attempt_id) for attempt_id in attempt_ids]
    )
