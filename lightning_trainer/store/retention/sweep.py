"""Deletion, one slice at a time, in order of arrival.

Invariant: nothing is deleted that a step can still use: the spans of attempts that wait for a step, belong to a step
that is being trained, or are still running, and the batches of steps after the oldest checkpoint. Deleted attempts
leave their names (``expired``), so that redelivery changes nothing; counts and ledger stay.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lightning_trainer.store.batch_codec import without_advantages
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.media import table as references
from lightning_trainer.store.tables import totals

_LOOKED_AT = 500
"""Spans examined in one slice."""
_DELETED = 2000
"""Maximum number of spans deleted in one slice."""
_STEPS = 20
_NAMES = 500
_MARKS = 2000
"""The number of time marks that one mark is compared with: those of more than a day."""
RUNNING_FOR_NS = 24 * 3600 * 10**9
"""An attempt without new spans for this long counts as not running any more."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The result of one slice."""

    position: int
    """The last span examined; 0: there was none after the start."""
    deleted: int = 0


def last_before(connection: Connection, at_ns: int) -> int:
    """Return the last span that had arrived by then, by our clock; 0 if there was none.

    Marks made by a wrong clock are ignored: a mark with an earlier time than one before it, and a mark in the future.
    """
    near = "(SELECT seq, at_ns FROM received WHERE seq <= ? ORDER BY seq DESC LIMIT ?) AS near"
    last, later, now_ns = None, 2**62, time.time_ns()
    while later is not None:
        (last,) = connection.execute(
            "SELECT max(seq) FROM received WHERE at_ns <= ? AND seq < ?", (at_ns, later)
        ).fetchone()
        if last is None:
            return 0
        (later,) = connection.execute(
            f"SELECT min(seq) FROM {near} WHERE at_ns > ? AND at_ns <= ?", (last, _MARKS, at_ns, now_ns)
        ).fetchone()
    (last,) = connection.execute(
        f"SELECT seq FROM {near} WHERE at_ns <= ? ORDER BY at_ns DESC, seq DESC LIMIT 1", (last, _MARKS, at_ns)
    ).fetchone()
    return last


def delete_spans(connection: Connection, after: int, until: int, *, wanted_by: Collection[str], now_ns: int) -> Slice:
    """Examine the first spans after ``after`` and delete those that no step can use, attempt by attempt.

    Args:
        until: the last span that may be deleted; an attempt with later spans is kept whole.
        wanted_by: policies that still take attempts.
    """
    # The newest span is kept: the next span's number is derived from it, and numbers only increase.
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM spans").fetchone()
    rows = connection.execute(
        """SELECT seq, attempt_id, rollout_id, trace_id, response_id FROM spans
           WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?""",
        (after, min(until, last - 1), _LOOKED_AT),
    ).fetchall()
    if not rows:
        return Slice(0)
    asked = {"policies": json.dumps(list(wanted_by)), "running": last_before(connection, now_ns - RUNNING_FOR_NS)}
    may_go: dict[str, bool] = {}
    alone: list[int] = []
    deleted, position = 0, after
    for seq, attempt_id, rollout_id, trace_id, response_id in rows:
        if deleted + len(alone) >= _DELETED:
            break
        position = seq
        if attempt_id is None:
            if not _is_wanted_near(connection, trace_id, rollout_id, response_id, asked):
                alone.append(seq)
        elif attempt_id not in may_go:
            may_go[attempt_id] = _is_over(connection, attempt_id, min(until, last - 1)) and not _is_wanted(
                connection, attempt_id, asked
            )
            if may_go[attempt_id]:
                deleted += expire_attempt(connection, attempt_id, now_ns)
    deleted += delete_rows(connection, alone)
    return Slice(position, deleted)


_ATTEMPTS_NEAR = """
    SELECT * FROM (SELECT DISTINCT attempt_id FROM spans WHERE trace_id = ?1 AND attempt_id IS NOT NULL LIMIT 50)
        AS traced
    UNION SELECT attempt_id FROM attempts WHERE rollout_id = ?2
    UNION SELECT * FROM (SELECT attempt_id FROM spans WHERE response_id = ?3 AND attempt_id IS NOT NULL LIMIT 50)
        AS named"""


def _is_wanted_near(
    connection: Connection, trace_id: str, rollout_id: str | None, response_id: str | None, asked: Mapping[str, object]
) -> bool:
    """Whether a step may use a span without an attempt: an attempt of its trace, rollout, or response is wanted."""
    near = connection.execute(_ATTEMPTS_NEAR, (trace_id, rollout_id, response_id)).fetchall()
    return any(_is_wanted(connection, attempt_id, asked) for (attempt_id,) in near)


def _is_over(connection: Connection, attempt_id: str, until: int) -> bool:
    (last,) = connection.execute("SELECT max(seq) FROM spans WHERE attempt_id = ?", (attempt_id,)).fetchone()
    return last is None or last <= until


def _is_wanted(connection: Connection, attempt_id: str, asked: Mapping[str, object]) -> bool:
    found = connection.execute(
        """SELECT EXISTS (SELECT 1 FROM waiting WHERE attempt_id = :attempt_id AND resting = 0
                          AND policy IN (SELECT value FROM json_each(:policies)))
            OR EXISTS (SELECT 1 FROM assignments JOIN steps USING (policy, step)
                       WHERE attempt_id = :attempt_id AND state = 'assigned')
            OR EXISTS (SELECT 1 FROM attempts WHERE attempt_id = :attempt_id AND state = 'running'
                       AND EXISTS (SELECT 1 FROM spans WHERE spans.attempt_id = :attempt_id AND seq > :running))""",
        {**asked, "attempt_id": attempt_id},
    ).fetchone()
    return bool(found[0])


def expired_among(connection: Connection, attempt_ids: Collection[str]) -> set[str]:
    """Return those of some attempts whose spans were deleted, so that no more spans of theirs are stored."""
    rows = connection.execute(
        "SELECT attempt_id FROM expired WHERE attempt_id IN (SELECT value FROM json_each(?))",
        (json.dumps(list(attempt_ids)),),
    )
    return {attempt_id for (attempt_id,) in rows}


def kept_among(connection: Connection, attempt_ids: Collection[str]) -> set[str]:
    """Return those of some attempts that have stored spans and are not being deleted."""
    rows = connection.execute(
        """SELECT DISTINCT attempt_id FROM spans WHERE attempt_id IN (SELECT value FROM json_each(?))
           AND NOT EXISTS (SELECT 1 FROM expired WHERE expired.attempt_id = spans.attempt_id)""",
        (json.dumps(list(attempt_ids)),),
    )
    return {attempt_id for (attempt_id,) in rows}


def expire_attempt(connection: Connection, attempt_id: str, now_ns: int) -> int:
    """Mark an attempt as expired, and delete as many of its spans as keep the transaction short; return how many. The
    sweep deletes the rest later."""
    new = connection.execute("INSERT INTO expired VALUES (?, ?) ON CONFLICT DO NOTHING", (attempt_id, now_ns)).rowcount
    for table in ("arrivals", "outer_traces", "waiting", "evaluations"):
        connection.execute(f"DELETE FROM {table} WHERE attempt_id = ?", (attempt_id,))
    rows = connection.execute("SELECT seq FROM spans WHERE attempt_id = ? ORDER BY seq LIMIT ?", (attempt_id, _DELETED))
    deleted = delete_rows(connection, [seq for (seq,) in rows])
    totals.add(connection, {f"{totals.DELETED}attempts": new})
    return deleted


def delete_rows(connection: Connection, seqs: Sequence[int]) -> int:
    """Delete spans by their numbers and update the totals; return how many there were."""
    if not seqs:
        return 0
    (last,) = connection.execute("SELECT max(seq) FROM spans").fetchone()
    if last in seqs:  # its mark prevents the number from being given out again: see spans.insert
        connection.execute("INSERT INTO received VALUES (?, ?) ON CONFLICT DO NOTHING", (last, time.time_ns()))
    listed = (json.dumps(list(seqs)),)
    (calls,) = connection.execute(
        """SELECT count(*) FROM spans WHERE seq IN (SELECT CAST(value AS BIGINT) FROM json_each(?))
           AND scope = 'lightning.gateway'""",
        listed,
    ).fetchone()
    spans = connection.execute(
        "DELETE FROM spans WHERE seq IN (SELECT CAST(value AS BIGINT) FROM json_each(?))", listed
    ).rowcount
    totals.add(connection, {"spans": -spans, "calls": -calls, f"{totals.DELETED}spans": spans})
    references.release(connection, [references.of_span(seq) for seq in seqs])
    return spans


def delete_step_spans(
    connection: Connection, policy: str, after: int, until: int, *, wanted_by: Collection[str], now_ns: int
) -> Slice:
    """Delete spans consumed by the steps after ``after`` and up to ``until``; positions are steps.

    As long as something was deleted, the position stays before the first of these steps, which may have more.
    """
    rows = connection.execute(
        """SELECT step, attempt_id FROM assignments WHERE policy = ? AND step > ? AND step <= ?
           AND EXISTS (SELECT 1 FROM spans WHERE spans.attempt_id = assignments.attempt_id)
           ORDER BY step, position LIMIT ?""",
        (policy, after, until, _NAMES),
    ).fetchall()
    if not rows:
        return Slice(0)
    asked = {"policies": json.dumps(list(wanted_by)), "running": last_before(connection, now_ns - RUNNING_FOR_NS)}
    deleted = sum(
        expire_attempt(connection, attempt_id, now_ns)
        for _, attempt_id in rows
        if not _is_wanted(connection, attempt_id, asked)
    )
    first, last = rows[0][0], rows[-1][0]
    if deleted:
        return Slice(first - 1, deleted)
    # Everything that was read is wanted. The last step may have more attempts than were read; if it is the only step,
    # no more can be read.
    return Slice(last if len(rows) < _NAMES or first == last else last - 1)


def delete_batches(connection: Connection, policy: str, until: int) -> int:
    """Delete the batches and the advantages of the first steps up to ``until`` that have them; return how many steps.

    Metrics and ledger of the steps are kept.
    """
    rows = connection.execute(
        """SELECT step, report FROM steps WHERE policy = ? AND step <= ? AND batch IS NOT NULL AND state != 'assigned'
           ORDER BY step LIMIT ?""",
        (policy, until, _STEPS),
    ).fetchall()
    connection.executemany(
        "UPDATE steps SET batch = NULL, report = ? WHERE policy = ? AND step = ?",
        [(None if report is None else without_advantages(report), policy, step) for step, report in rows],
    )
    references.release(connection, [references.of_step(policy, step) for step, _ in rows])
    totals.add(connection, {f"{totals.DELETED}batches": len(rows)})
    return len(rows)


def delete_media(connection: Connection, after: int, *, wanted_by: Collection[str], now_ns: int) -> Slice:
    """Examine the first media after ``after`` and delete those that no step can use; references to them stay."""
    asked = {"policies": json.dumps(list(wanted_by)), "running": last_before(connection, now_ns - RUNNING_FOR_NS)}
    return Slice(*references.delete_oldest(connection, after, lambda seqs: _any_is_wanted(connection, seqs, asked)))


def _any_is_wanted(connection: Connection, seqs: Sequence[int], asked: Mapping[str, object]) -> bool:
    rows = connection.execute(
        """SELECT attempt_id, trace_id, rollout_id, response_id FROM spans
           WHERE seq IN (SELECT CAST(value AS BIGINT) FROM json_each(?))""",
        (json.dumps(seqs),),
    ).fetchall()
    attempts = {row[0] for row in rows if row[0] is not None}
    alone = {row[1:] for row in rows if row[0] is None}
    return any(_is_wanted(connection, attempt_id, asked) for attempt_id in attempts) or any(
        _is_wanted_near(connection, trace_id, rollout_id, response_id, asked)
        for trace_id, rollout_id, response_id in alone
    )


def last_step_before(connection: Connection, policy: str, at_ns: int) -> int:
    """Return the newest version, and so the newest step, made by then; 0 if there was none.

    A version that a wrong clock dated before an earlier version counts as made after that one.
    """
    row = connection.execute(
        """SELECT max(version) FROM versions WHERE policy = ?1 AND created_ns <= ?2 AND version < coalesce(
               (SELECT min(version) FROM versions WHERE policy = ?1 AND created_ns > ?2 AND created_ns <= ?3),
               9223372036854775807)""",
        (policy, at_ns, time.time_ns()),
    ).fetchone()
    return row[0] or 0


def forget_names(connection: Connection, before_ns: int) -> int:
    """Forget attempts whose spans were deleted before then; return how many."""
    rows = connection.execute(
        "SELECT attempt_id FROM expired WHERE at_ns < ? ORDER BY at_ns LIMIT ?", (before_ns, _NAMES)
    ).fetchall()
    ids = [attempt_id for (attempt_id,) in rows]
    if not ids:
        return 0
    listed = (json.dumps(ids),)
    of_ids = "attempt_id IN (SELECT value FROM json_each(?))"
    rollouts = [
        one for (one,) in connection.execute(f"SELECT DISTINCT rollout_id FROM attempts WHERE {of_ids}", listed)
    ]
    states, known = totals.states_of(connection, ids), totals.rollouts_of(connection, rollouts)
    for table in (
        "assignments",
        "arrivals",
        "participations",
        "outer_traces",
        "waiting",
        "drops",
        "evaluations",
        "attempts",
        "expired",
    ):
        connection.execute(f"DELETE FROM {table} WHERE {of_ids}", listed)
    delete_settled(connection, ids)
    changes = {state: -number for state, number in states.items()}
    totals.add(connection, {**changes, "rollouts": totals.rollouts_of(connection, rollouts) - known})
    return len(ids)


def delete_settled(connection: Connection, attempt_ids: Collection[str]) -> None:
    """Forget which rewards were made from feedback, for attempts that have neither spans nor feedback left."""
    connection.execute(
        """DELETE FROM settled WHERE attempt_id IN (SELECT value FROM json_each(?))
           AND NOT EXISTS (SELECT 1 FROM spans WHERE spans.attempt_id = settled.attempt_id)
           AND NOT EXISTS (SELECT 1 FROM feedback WHERE feedback.attempt_id = settled.attempt_id)""",
        (json.dumps(list(attempt_ids)),),
    )


def forget_marks(connection: Connection) -> None:
    """Delete the time marks of deleted spans, except the newest."""
    connection.execute(
        """DELETE FROM received WHERE seq < (SELECT max(seq) FROM received
           WHERE seq < (SELECT min(seq) FROM spans)) AND seq < (SELECT min(seq) FROM spans)"""
    )


def oldest_span_ns(connection: Connection) -> int | None:
    """Return the time by which the oldest span had arrived, by our clock, to the minute; None if there is no span."""
    (first,) = connection.execute("SELECT min(seq) FROM spans").fetchone()
    if first is None:
        return None
    row = connection.execute("SELECT at_ns FROM received WHERE seq >= ? ORDER BY seq LIMIT 1", (first,)).fetchone()
    return time.time_ns() if row is None else row[0]
