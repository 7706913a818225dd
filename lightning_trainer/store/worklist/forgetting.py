"""Erasure: everything from one source, of one rollout, of one task, or of a trace or response outside of rollouts, is
deleted, and cannot be delivered again.

Its effect on trained weights cannot be removed: the steps are named, so that a user can go back to a version before the
first of them.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lightning_trainer.errors import ForgetError
from lightning_trainer.samples.feedback.review import target_of
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.retention.sweep import delete_rows, expire_attempt, expired_among
from lightning_trainer.store.tables import feedback, forgotten
from lightning_trainer.store.tables.forgotten import Named
from lightning_trainer.store.tables.rollouts import select_of_task
from lightning_trainer.store.tables.spans import numbers_of_attempts
from lightning_trainer.store.worklist import feedback_rewards
from lightning_trainer.types import SHADOW_MARK

_LISTED = 3


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A step that consumed what was forgotten."""

    policy: str
    step: int
    state: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was deleted."""

    name: str
    feedback: int
    edits: int
    rewards: int
    """Rewards made from the deleted feedback, alone or with other feedback; they are recomputed from what is left."""
    attempts: int
    spans: int
    steps: tuple[TrainedStep, ...]


def forget_source(connection: Connection, source: str, *, now_ns: int) -> Forgotten:
    """Delete everything that a source sent until now.

    Raises:
        ForgetError: no feedback of the source is stored.
    """
    rows = connection.execute(
        "SELECT trace_id, span_id, name, attempt_id, response_id, edited FROM feedback WHERE source = ?", (source,)
    ).fetchall()
    if not rows:
        raise ForgetError(f"there is no feedback of source {source!r}; `lightning-trainer feedback` lists the sources")
    targets = {
        target_of(attempt_id, part, name)
        for _, _, name, attempt_id, response_id, _ in rows
        if attempt_id is not None
        for part in (None, response_id)
    }
    listed = (json.dumps(sorted(targets)),)
    made_of = connection.execute(
        "SELECT DISTINCT attempt_id FROM settled WHERE target IN (SELECT value FROM json_each(?))", listed
    ).fetchall()
    steps = _steps(connection, [attempt_id for (attempt_id,) in made_of])
    rewards = feedback_rewards.retract(connection, targets)
    connection.execute("DELETE FROM feedback WHERE source = ?", (source,))
    spans = feedback_rewards.delete_spans(connection, [(trace_id, span_id) for trace_id, span_id, *_ in rows])
    forgotten.mark(connection, Named.SOURCE, [source], now_ns)
    edits = sum(edited for *_, edited in rows)
    return Forgotten(source, len(rows), edits, rewards, 0, spans + rewards, steps)


def forget_rollout(connection: Connection, rollout: str, *, now_ns: int) -> Forgotten:
    """Delete everything of a rollout (by its or an attempt's id): its spans, feedback on it, its rewards, and what
    candidates answered alongside it.

    Raises:
        ForgetError: nothing of it is stored, or the name is that of a task.
    """
    ids = _attempts_of(connection, rollout)
    if not ids and (of_task := select_of_task(connection, rollout)):
        listed = ", ".join(of_task[:_LISTED]) + (f" and {more} more" if (more := len(of_task) - _LISTED) > 0 else "")
        raise ForgetError(
            f"{rollout!r} is a task and not a rollout; its rollouts are {listed}: forget one of them, or all "
            f"with `lightning-trainer forget --task {rollout}`"
        )
    return _forget_attempts(connection, "rollout", rollout, ids, now_ns)


def forget_task(connection: Connection, task: str, *, now_ns: int) -> Forgotten:
    """Delete everything of all rollouts of a task, as ``forget_rollout`` does for one, and feedback that names the task
    in place of a rollout.

    Raises:
        ForgetError: nothing of it is stored.
    """
    return _forget_attempts(connection, "task", task, attempts_named(connection, "task", task), now_ns)


def attempts_named(connection: Connection, kind: str, name: str) -> list[str]:
    """Return the attempts of a ``rollout`` or a ``task``; empty for any other ``kind``."""
    rollouts = {"rollout": [name], "task": select_of_task(connection, name)}.get(kind, [])
    return sorted({one for rollout in rollouts for one in _attempts_of(connection, rollout)})


def _attempts_of(connection: Connection, rollout: str) -> list[str]:
    """Return the attempts of a rollout, or the attempt of this id, and the candidates' shadows of them."""
    rows = connection.execute(
        """SELECT attempt_id FROM attempts WHERE rollout_id = ?1 OR attempt_id = ?1 OR (mode = 'shadow' AND
           (rollout_id >= ?2 AND rollout_id < ?3 OR attempt_id >= ?2 AND attempt_id < ?3)) ORDER BY attempt_id""",
        (rollout, f"{rollout}{SHADOW_MARK}", f"{rollout}{SHADOW_MARK}\U0010ffff"),
    )
    return [attempt_id for (attempt_id,) in rows]


def _forget_attempts(connection: Connection, kind: str, name: str, ids: Sequence[str], now_ns: int) -> Forgotten:
    said = feedback.of_attempts(connection, name, ids) if ids or kind == "rollout" else []
    numbers = numbers_of_attempts(connection, ids)
    if not numbers and not said:
        raise ForgetError(f"nothing of a {kind} {name!r} is stored; `lightning-trainer explain` lists rollouts")
    steps = _steps(connection, ids)
    attempts = len(ids) - len(expired_among(connection, ids))
    _refuse_from_now_on(connection, name, ids, now_ns)
    listed = (json.dumps(ids),)
    of_ids = "attempt_id IN (SELECT value FROM json_each(?))"
    made = connection.execute(f"SELECT trace_id, span_id FROM settled WHERE {of_ids}", listed).fetchall()
    keys = [(trace_id, span_id) for trace_id, span_id, _ in said]
    spans = feedback_rewards.delete_spans(connection, keys + made)
    connection.executemany("DELETE FROM feedback WHERE trace_id = ? AND span_id = ?", keys)
    connection.execute(f"DELETE FROM settled WHERE {of_ids}", listed)
    connection.execute(f"UPDATE attempts SET error = NULL WHERE {of_ids}", listed)
    spans += delete_rows(connection, numbers)
    for attempt_id in ids:
        spans += expire_attempt(connection, attempt_id, now_ns)
    edits = sum(edited for *_, edited in said)
    return Forgotten(name, len(said), edits, len(made), attempts, spans, steps)


def forget_trace(connection: Connection, trace_id: str, *, now_ns: int) -> Forgotten:
    """Delete a trace that is part of no rollout, other traces' records of its responses, and feedback on it.

    Raises:
        ForgetError: nothing of it is stored, or it is part of a rollout.
    """
    rows = connection.execute(
        """SELECT DISTINCT response_id FROM spans WHERE trace_id = ? AND response_id IS NOT NULL
           AND name NOT LIKE 'evaluate %'""",
        (trace_id,),
    )
    return _forget_outside(connection, Named.TRACE, trace_id, [one for (one,) in rows], now_ns=now_ns)


def forget_response(connection: Connection, response_id: str, *, now_ns: int) -> Forgotten:
    """Delete the records of a call that is part of no rollout, and feedback on its response.

    Raises:
        ForgetError: nothing of it is stored, or it is part of a rollout.
    """
    return _forget_outside(connection, Named.RESPONSE, response_id, [response_id], now_ns=now_ns)


def _forget_outside(
    connection: Connection, kind: Named, name: str, responses: Sequence[str], *, now_ns: int
) -> Forgotten:
    trace, listed = name if kind is Named.TRACE else None, json.dumps(list(responses))
    of_it = "trace_id = ?1 OR response_id IN (SELECT value FROM json_each(?2))"
    inside = connection.execute(
        f"""SELECT rollout_id FROM attempts WHERE attempt_id IN (SELECT attempt_id FROM spans WHERE trace_id IN
            (SELECT trace_id FROM spans WHERE {of_it}) UNION SELECT attempt_id FROM outer_traces WHERE trace_id = ?1)
            ORDER BY rollout_id LIMIT 1""",
        (trace, listed),
    ).fetchone()
    if inside is not None:
        raise ForgetError(
            f"{kind.name.lower()} {name!r} is part of rollout {inside[0]!r}: `lightning-trainer forget --rollout "
            f"{inside[0]}` erases it with the rest of that rollout"
        )
    numbers = [seq for (seq,) in connection.execute(f"SELECT seq FROM spans WHERE {of_it}", (trace, listed))]
    said = connection.execute(
        """SELECT trace_id, span_id, edited FROM feedback
           WHERE about_trace = ?1 OR response_id IN (SELECT value FROM json_each(?2))""",
        (trace, listed),
    ).fetchall()
    if not numbers and not said:
        raise ForgetError(f"nothing of a {kind.name.lower()} {name!r} is stored; check the id")
    forgotten.mark(connection, kind, [name], now_ns)
    forgotten.mark(connection, Named.RESPONSE, responses, now_ns)
    keys = [(trace_id, span_id) for trace_id, span_id, _ in said]
    connection.executemany("DELETE FROM feedback WHERE trace_id = ? AND span_id = ?", keys)
    spans = delete_rows(connection, numbers) + feedback_rewards.delete_spans(connection, keys)
    return Forgotten(name, len(said), sum(edited for *_, edited in said), 0, 0, spans, ())


def _refuse_from_now_on(connection: Connection, rollout: str, attempt_ids: Sequence[str], now_ns: int) -> None:
    """Refuse, from now on, what belongs to the attempts without carrying their ids: of deleted attempts, only the ids
    are remembered."""
    listed = (json.dumps(list(attempt_ids)),)
    for kind, column, table in (
        (Named.ROLLOUT, "rollout_id", "attempts"),
        (Named.TRACE, "trace_id", "spans"),
        (Named.RESPONSE, "response_id", "spans"),
    ):
        rows = connection.execute(
            f"""SELECT DISTINCT {column} FROM {table} WHERE attempt_id IN (SELECT value FROM json_each(?))
                AND {column} IS NOT NULL""",
            listed,
        ).fetchall()
        forgotten.mark(connection, kind, [name for (name,) in rows], now_ns)
    forgotten.mark(connection, Named.ROLLOUT, [rollout], now_ns)
    # The program's own traces, without those in which other attempts were made too: feedback may mean these attempts.
    traces = connection.execute(
        """SELECT DISTINCT trace_id FROM outer_traces AS own WHERE attempt_id IN (SELECT value FROM json_each(?1))
           AND NOT EXISTS (SELECT 1 FROM outer_traces AS other WHERE other.trace_id = own.trace_id
               AND other.attempt_id NOT IN (SELECT value FROM json_each(?1)))""",
        listed,
    ).fetchall()
    forgotten.mark(connection, Named.TRACE, [name for (name,) in traces], now_ns)
    # A candidate may still be answering alongside these attempts, and its spans will have an attempt id that is new.
    candidates = connection.execute("SELECT DISTINCT version FROM canaries WHERE ended_ns IS NULL").fetchall()
    connection.executemany(
        "INSERT INTO expired VALUES (?, ?) ON CONFLICT DO NOTHING",
        [(f"{name}{SHADOW_MARK}{version}", now_ns) for name in attempt_ids for (version,) in candidates],
    )


def _steps(connection: Connection, attempt_ids: Collection[str]) -> tuple[TrainedStep, ...]:
    rows: Sequence[tuple] = connection.execute(
        """SELECT policy, step, state, count(*) FROM assignments JOIN steps USING (policy, step)
           WHERE attempt_id IN (SELECT value FROM json_each(?)) AND state != 'skipped'
           GROUP BY policy, step, state ORDER BY policy, step""",
        (json.dumps(sorted(attempt_ids)),),
    ).fetchall()
    return tuple(TrainedStep(*row) for row in rows)
