"""Feedback in its own table next to its spans.

A row is written in the transaction that stores its span. Until its attempt is known, it is looked up at every reading:
feedback may arrive before the spans of its subject.

Our spans have traces of their own. If the program itself uses OpenTelemetry (Langfuse, say), they name the program's
span in which they were made (``lightning.outer_span``). ``outer_traces`` holds the traces of these spans, so that
feedback may name the program's trace.
"""

import json
import time
from collections.abc import Collection, Sequence

from lightning_instrumentation import semconv

from lightning_trainer.otlp.span_codec import decode_span
from lightning_trainer.samples.feedback.entries import Entry, Subject, entries_of, is_feedback
from lightning_trainer.samples.feedback.review import Kept
from lightning_trainer.store.connection import ALL, Connection
from lightning_trainer.store.retention.sweep import delete_settled
from lightning_trainer.store.tables import cursors, forgotten
from lightning_trainer.store.tables.scores import number_of
from lightning_trainer.store.worklist import feedback_rewards
from lightning_trainer.types import Span

READ = 20_000
"""How many of the newest pieces are evaluated together, and how many of the newest in quarantine are read in addition.
"""
_NAMES = 500
_LOOKED_UP = 250
"""How many of the newest pieces of feedback have their attempts looked up at once, and how many of the older."""
_UNMATCHED = "feedback/unmatched"
"""The cursor through feedback whose attempt is unknown."""


def note(connection: Connection, new: Sequence[Span], now_ns: int | None = None) -> None:
    """Store the feedback among newly stored spans. Also record which of them are rewards made from feedback, and the
    program's own traces by which feedback may name them."""
    feedback_rewards.note(connection, new)
    note_outer_traces(connection, new)
    entries = [entry for span in new if is_feedback(span.attributes) or span.events for entry in entries_of(span)]
    if entries:
        received_ns = time.time_ns() if now_ns is None else now_ns
        rows = [_row(connection, entry, received_ns) for entry in entries]
        connection.executemany(
            f"INSERT INTO feedback({_COLUMNS}) VALUES ({', '.join('?' * len(rows[0]))}) ON CONFLICT DO NOTHING", rows
        )


def note_outer_traces(connection: Connection, new: Sequence[Span]) -> None:
    """Record in which of the program's own traces newly stored spans were made; idempotent."""
    seen = {
        (outer.partition("-")[0], attempt_id)
        for span in new
        if isinstance(outer := span.attributes.get(semconv.OUTER_SPAN), str)
        and isinstance(attempt_id := span.attributes.get(semconv.ATTEMPT_ID), str)
    }
    connection.executemany(
        "INSERT INTO outer_traces(trace_id, attempt_id) VALUES (?, ?) ON CONFLICT DO NOTHING", sorted(seen)
    )


def date_back(connection: Connection, after: int, since_ns: int) -> None:
    """Date the receipt of feedback from a journal, stored after row ``after``, back to when the feedback was given.

    A source's caps are per hour, and all of the journal's feedback arrives within one.

    Args:
        since_ns: the earliest time of receipt; none of this feedback was received before.
    """
    connection.execute(
        """UPDATE feedback SET received_ns = CASE WHEN given_ns < ?1 THEN ?1 ELSE given_ns END
           WHERE seq > ?2 AND given_ns < received_ns""",
        (since_ns, after),
    )


_COLUMNS = """trace_id, span_id, source, kind, name, rollout_id, named_attempt, attempt_id, response_id, about_trace,
    value, taken_back, edited, given_ns, received_ns"""


def _row(connection: Connection, entry: Entry, received_ns: int) -> tuple:
    subject = entry.subject
    return (
        *(entry.trace_id, entry.span_id, entry.source, entry.kind, entry.name),
        *(subject.rollout_id, subject.attempt_id),
        attempt_of(connection, subject),
        *(subject.response_id, subject.trace_id, entry.value, entry.taken_back, entry.correction is not None),
        *(entry.given_ns, received_ns),
    )


def match(connection: Connection) -> int:
    """Look up the attempts of feedback whose attempt was unknown; return how many were found.

    The newest feedback is looked up every time, and as much of the older feedback by turns: so feedback from strangers,
    however much of it arrives, does not keep other feedback from being found.
    """
    newest = _unmatched(connection, before=ALL)
    rows = [*newest, *(_unmatched_in_turn(connection, newest[-1][0]) if len(newest) == _LOOKED_UP else ())]
    found = [(attempt_id, seq) for seq, *named in rows if (attempt_id := _attempt(connection, *named)) is not None]
    connection.executemany("UPDATE feedback SET attempt_id = ? WHERE seq = ?", found)
    return len(found)


def of_attempts(connection: Connection, name: str, attempt_ids: Collection[str]) -> list[tuple[str, str, bool]]:
    """Return trace id, span id, and whether it is an edit, for all feedback on some attempts, and for feedback that
    names a rollout or attempt of which nothing has arrived yet.

    Args:
        name: that rollout or attempt.
    """
    columns = "trace_id, span_id, edited, attempt_id, rollout_id, named_attempt, response_id, about_trace"
    wanted = "(SELECT value FROM json_each(?2))"
    rows = connection.execute(
        f"""SELECT {columns} FROM feedback WHERE attempt_id IN {wanted}
            UNION ALL SELECT {columns} FROM feedback WHERE attempt_id IS NULL AND (
                rollout_id = ?1 OR named_attempt = ?1 OR named_attempt IN {wanted}
                OR rollout_id IN (SELECT rollout_id FROM attempts WHERE attempt_id IN {wanted})
                OR response_id IN (SELECT response_id FROM spans WHERE attempt_id IN {wanted})
                OR about_trace IN (SELECT trace_id FROM spans WHERE attempt_id IN {wanted})
                OR about_trace IN (SELECT trace_id FROM outer_traces WHERE attempt_id IN {wanted}))""",
        (name, json.dumps(list(attempt_ids))),
    ).fetchall()
    found = []
    for trace_id, span_id, edited, attempt_id, *named in rows:
        about = attempt_id or _attempt(connection, *named)
        if about in attempt_ids or (about is None and name in named[:2]):
            found.append((trace_id, span_id, bool(edited)))
    return found


def _unmatched(connection: Connection, *, before: int) -> list[tuple]:
    return connection.execute(
        """SELECT seq, rollout_id, named_attempt, response_id, about_trace FROM feedback
           WHERE attempt_id IS NULL AND seq < ? ORDER BY seq DESC LIMIT ?""",
        (before, _LOOKED_UP),
    ).fetchall()


def _unmatched_in_turn(connection: Connection, before: int) -> list[tuple]:
    """Return the next pieces of feedback older than ``before``; after the oldest, start over."""
    position = cursors.position(connection, _UNMATCHED)
    rows = _unmatched(connection, before=min(position or before, before))
    cursors.move(connection, _UNMATCHED, rows[-1][0] if len(rows) == _LOOKED_UP else 0)
    return rows


def _attempt(
    connection: Connection,
    rollout_id: str | None,
    attempt_id: str | None,
    response_id: str | None,
    trace_id: str | None,
) -> str | None:
    """Return the attempt that the ids identify, of a rollout the last one; None if it is unknown or ambiguous.

    If a rollout is named, a response or trace tells which of its attempts is meant, and never leads to another rollout:
    several rollouts may share both.
    """
    if attempt_id is not None:
        row = connection.execute(
            "SELECT attempt_id FROM attempts WHERE attempt_id = ?1 AND (?2 IS NULL OR rollout_id = ?2)",
            (attempt_id, rollout_id),
        ).fetchone()
        return None if row is None else row[0]
    of_work = "attempt_id IS NOT NULL AND name NOT LIKE 'evaluate %'"
    of_rollout = "(?2 IS NULL OR attempt_id IN (SELECT attempt_id FROM attempts WHERE rollout_id = ?2))"
    for name, known in (
        (response_id, f"spans WHERE response_id = ?1 AND {of_work}"),
        (trace_id, f"spans WHERE trace_id = ?1 AND {of_work}"),
        (trace_id, "outer_traces WHERE trace_id = ?1"),
    ):
        if name is not None:
            rows = connection.execute(
                f"SELECT DISTINCT attempt_id FROM {known} AND {of_rollout} LIMIT 2", (name, rollout_id)
            ).fetchall()
            if len(rows) == 1:
                return rows[0][0]
            if rows and rollout_id is None:
                return None
    if rollout_id is None:
        return None
    row = connection.execute(
        "SELECT attempt_id FROM attempts WHERE rollout_id = ? ORDER BY started_ns DESC, attempt_id DESC LIMIT 1",
        (rollout_id,),
    ).fetchone()
    return None if row is None else row[0]


def attempt_of(connection: Connection, subject: Subject) -> str | None:
    """Return the attempt that feedback on the subject counts for; None if there is none yet, or if it is ambiguous."""
    about = (subject.rollout_id, subject.attempt_id, subject.response_id, subject.trace_id)
    return _attempt(connection, *about)


def is_known(connection: Connection, trace_id: str) -> bool:
    """Whether a span of the trace is stored, or a span of ours that was made within the trace."""
    found = connection.execute(
        """SELECT 1 FROM spans WHERE trace_id = ?1
           UNION ALL SELECT 1 FROM outer_traces WHERE trace_id = ?1 LIMIT 1""",
        (trace_id,),
    )
    return found.fetchone() is not None


def response_of(connection: Connection, trace_id: str, span_id: str) -> str | None:
    """Return the id of the response that a span recorded; None if there is none, or the span is not stored."""
    row = connection.execute(
        "SELECT response_id FROM spans WHERE trace_id = ? AND span_id = ?", (trace_id, span_id)
    ).fetchone()
    return None if row is None else row[0]


def select(connection: Connection, until_ns: int = ALL) -> list[Kept]:
    """Return the newest feedback that had arrived by then, and the newest of what arrived later, oldest first.

    Each part is limited to ``READ`` pieces, so that what arrived later takes no room from the earlier feedback.
    """
    return [*_select_between(connection, -ALL, until_ns), *_select_between(connection, until_ns, ALL)]


def _select_between(connection: Connection, after_ns: int, until_ns: int) -> list[Kept]:
    rows = connection.execute(
        """SELECT trace_id, span_id, source, kind, name, attempt_id, response_id, value, taken_back, edited, given_ns,
           received_ns FROM feedback WHERE received_ns > ? AND received_ns <= ?
           ORDER BY received_ns DESC, seq DESC LIMIT ?""",
        (after_ns, until_ns, READ),
    ).fetchall()
    return [_kept(*row) for row in reversed(rows)]


def _kept(
    trace_id, span_id, source, kind, name, attempt_id, response_id, value, back, edited, given_ns, come_ns
) -> Kept:
    about = (trace_id, span_id, source, kind, name, attempt_id, response_id)
    return Kept(*about, value, bool(back), bool(edited), given_ns, come_ns)


def first_after(connection: Connection, after_ns: int) -> int | None:
    """Return when the first feedback after ``after_ns`` arrived; None if there is none."""
    return connection.execute("SELECT min(received_ns) FROM feedback WHERE received_ns > ?", (after_ns,)).fetchone()[0]


def edits_after(connection: Connection, after_ns: int) -> list[tuple[str, str, str]]:
    """Return source, trace id, and span id of every edited answer that arrived after ``after_ns``."""
    return connection.execute(
        "SELECT source, trace_id, span_id FROM feedback WHERE received_ns > ? AND edited = 1", (after_ns,)
    ).fetchall()


def count_of(connection: Connection, attempt_id: str) -> int:
    """Return how many pieces of feedback on an attempt are kept."""
    return connection.execute("SELECT count(*) FROM feedback WHERE attempt_id = ?", (attempt_id,)).fetchone()[0]


def said_lately(connection: Connection, since_ns: int) -> dict[str, int]:
    """Return, by source, how many pieces of feedback have arrived since then, except those that only take some back."""
    # Grouped by an expression, so that the index by source is not read as a whole.
    rows = connection.execute(
        """SELECT min(source), count(*) FROM feedback WHERE received_ns >= ? AND (taken_back = 0 OR edited = 1)
           GROUP BY source || ''""",
        (since_ns,),
    )
    return dict(rows)


def is_kept(connection: Connection, trace_id: str, span_id: str) -> bool:
    """Whether the feedback of this span is kept."""
    found = connection.execute("SELECT 1 FROM feedback WHERE trace_id = ? AND span_id = ?", (trace_id, span_id))
    return found.fetchone() is not None


def newest(connection: Connection) -> tuple[int, int]:
    """Return two numbers that change when feedback arrives, and when a source is forgotten."""
    (arrived,) = connection.execute("SELECT coalesce(max(seq), 0) FROM feedback").fetchone()
    return arrived, forgotten.change_mark(connection)


def select_verified(connection: Connection, attempt_ids: Collection[str], names: Sequence[str]) -> dict[str, float]:
    """Return by attempt id the mean of the rewards of these names, from 0 to 1; absent if there are none."""
    if not names or not attempt_ids:
        return {}
    rows = connection.execute(
        """SELECT attempts.attempt_id, spans.body, spans.scope FROM spans JOIN attempts ON
               attempts.attempt_id = spans.attempt_id
               OR (spans.attempt_id IS NULL AND attempts.attempt_id = (
                   SELECT attempt_id FROM attempts AS own WHERE own.rollout_id = spans.rollout_id
                   ORDER BY started_ns DESC, attempt_id DESC LIMIT 1))
           WHERE attempts.attempt_id IN (SELECT value FROM json_each(?))
           AND spans.name IN (SELECT 'evaluate ' || value FROM json_each(?))""",
        (json.dumps(sorted(attempt_ids)), json.dumps(list(names))),
    )
    newest: dict[tuple[str, str], tuple[int, float]] = {}
    for attempt_id, body, scope in rows:
        span = decode_span(body, scope=scope, resource={})
        for event in span.events:
            told = {**span.attributes, **event.attributes}  # either may say what is scored, and by whom
            score, name = number_of(told.get(semconv.EVALUATION_SCORE)), told.get(semconv.EVALUATION_NAME)
            # Only scores of the attempt as a whole count: a score of one agent or one call does not rate the answer.
            part = semconv.EVALUATION_AGENT in told or semconv.RESPONSE_ID in told or is_feedback(told)
            if part or name not in names or score is None:
                continue
            given = (event.time_ns, min(1.0, max(0.0, score)))
            key = (attempt_id, str(name))
            newest[key] = max(newest.get(key, given), given)
    by_attempt: dict[str, list[float]] = {}
    for (attempt_id, _), (_, value) in newest.items():
        by_attempt.setdefault(attempt_id, []).append(value)
    return {attempt_id: sum(values) / len(values) for attempt_id, values in by_attempt.items()}


def expire(connection: Connection, before_ns: int) -> int:
    """Delete feedback that arrived before then, with its spans; the rewards made from it stay."""
    rows = connection.execute(
        "SELECT trace_id, span_id, attempt_id FROM feedback WHERE received_ns < ? LIMIT ?", (before_ns, _NAMES)
    ).fetchall()
    keys = [(trace_id, span_id) for trace_id, span_id, _ in rows]
    connection.executemany("DELETE FROM feedback WHERE trace_id = ? AND span_id = ?", keys)
    feedback_rewards.delete_spans(connection, keys)
    delete_settled(connection, {attempt_id for *_, attempt_id in rows if attempt_id is not None})
    return len(rows)
