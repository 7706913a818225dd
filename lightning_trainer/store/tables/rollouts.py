"""Rollouts by name, and their outcomes, for users' queries.

A user may know a rollout by its own id, by that of an attempt, by its task, or by a prefix of one of these.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

from lightning_trainer.otlp.span_codec import decode_resource, decode_span
from lightning_trainer.store.connection import Connection, stream
from lightning_trainer.types import Span

_COMPARED = 2000
"""Number of newest rollouts whose names are compared with a misspelled one."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One rollout in a list."""

    rollout_id: str
    task_id: str
    mode: str
    state: str
    """Of its last attempt."""
    attempts: int
    started_ns: int
    step: int | None
    """The last step that consumed one of its attempts; None if there is none yet."""


def select_recent(connection: Connection, limit: int) -> list[RolloutRow]:
    """Return the newest rollouts, newest first."""
    newest: dict[str, None] = {}
    ordered = "SELECT rollout_id FROM attempts ORDER BY started_ns DESC, rollout_id DESC"
    for (rollout_id,) in stream(connection, ordered):
        newest[rollout_id] = None
        if len(newest) >= limit:
            break
    rows = (RolloutRow(*connection.execute(_ONE, (rollout_id,)).fetchone()) for rollout_id in newest)
    return sorted(rows, key=lambda row: (row.started_ns, row.rollout_id), reverse=True)


_ONE = """
    SELECT rollout_id, coalesce(task_id, rollout_id), coalesce(mode, 'train'), state,
        (SELECT count(*) FROM attempts AS own WHERE own.rollout_id = attempts.rollout_id), started_ns,
        (SELECT max(step) FROM assignments JOIN attempts AS own USING (attempt_id)
         WHERE own.rollout_id = attempts.rollout_id)
    FROM attempts WHERE rollout_id = ? ORDER BY started_ns DESC, attempt_id DESC LIMIT 1"""


def has_part(connection: Connection, rollout_id: str, policy: str) -> bool:
    """Whether a policy took part in the rollout, or one of its steps consumed an attempt of it."""
    return any(
        connection.execute(
            f"SELECT 1 FROM {table} JOIN attempts USING (attempt_id) WHERE rollout_id = ? AND policy = ? LIMIT 1",
            (rollout_id, policy),
        ).fetchone()
        for table in ("assignments", "participations")
    )


def select_named(connection: Connection, name: str) -> list[str]:
    """Return the ids of the matching rollouts, oldest first, by the first rule that matches any:

    1. the exact id of a rollout, of an attempt, or of a task;
    2. a shell pattern of one of them, if the name contains ``*``, ``?``, or ``[``, else a prefix;
    3. a rollout that has spans but no attempt.
    """
    found = _matching(connection, "{} = ?", (name,)) or _alike(connection, name)
    if found:
        return found
    spans = connection.execute("SELECT 1 FROM spans WHERE rollout_id = ? LIMIT 1", (name,)).fetchone()
    return [] if spans is None else [name]


def _alike(connection: Connection, name: str) -> list[str]:
    """Return the ids of the rollouts whose name has a prefix, which is a range of the index; a pattern is matched
    within the range of its literal prefix."""
    beginning = re.split(r"[*?[]", name, maxsplit=1)[0]
    fits = partial(fnmatchcase, pat=name) if beginning != name else None
    # U+10FFFF sorts after every possible continuation of a name.
    return _matching(connection, "{0} >= ? AND {0} < ?", (beginning, beginning + "\U0010ffff"), fits)


def _matching(
    connection: Connection, condition: str, names: Sequence[str], fits: Callable[[str], bool] | None = None
) -> list[str]:
    for column in ("rollout_id", "attempt_id", "task_id"):
        newest: dict[str, int] = {}
        rows = stream(
            connection,
            f"SELECT rollout_id, {column}, max(started_ns) FROM attempts WHERE {condition.format(column)} "
            f"GROUP BY rollout_id, {column}",
            names,
        )
        for rollout_id, value, started_ns in rows:
            if fits is None or fits(value):
                newest[rollout_id] = max(started_ns, newest.get(rollout_id, started_ns))
        if newest:
            return sorted(newest, key=lambda rollout_id: (newest[rollout_id], rollout_id))
    return []


def select_of_task(connection: Connection, task_id: str) -> list[str]:
    """Return the ids of a task's rollouts, oldest first, without shadows, which go with the rollouts they shadow."""
    rows = connection.execute(
        """SELECT rollout_id FROM attempts WHERE task_id = ? AND coalesce(mode, 'train') != 'shadow'
           GROUP BY rollout_id ORDER BY min(started_ns), rollout_id""",
        (task_id,),
    )
    return [rollout_id for (rollout_id,) in rows]


def select_rated_tasks(connection: Connection) -> list[tuple[str, int]]:
    """Return the tasks that feedback names in place of a rollout, and how often; such feedback finds no attempt."""
    return connection.execute(
        """SELECT rollout_id, count(*) FROM feedback WHERE attempt_id IS NULL AND named_attempt IS NULL
           AND rollout_id IN (SELECT task_id FROM attempts) GROUP BY rollout_id ORDER BY 2 DESC, 1"""
    ).fetchall()


def nearest_names(connection: Connection, name: str, count: int = 3) -> list[str]:
    """Return the ids and tasks of rollouts that are most similar to a name; the newest rollouts if none is similar."""
    newest = select_recent(connection, _COMPARED)
    names = list(dict.fromkeys(name for row in newest for name in (row.rollout_id, row.task_id)))
    return difflib.get_close_matches(name, names, count) or [row.rollout_id for row in newest[:count]]


def select_assignment(connection: Connection, attempt_id: str, policy: str) -> tuple[str, int] | None:
    """Return the policy and the step that consumed an attempt, or None; if there are several, prefer ``policy``."""
    return connection.execute(
        "SELECT policy, step FROM assignments WHERE attempt_id = ? ORDER BY policy != ?, step LIMIT 1",
        (attempt_id, policy),
    ).fetchone()


def select_expired(connection: Connection, attempt_id: str) -> int | None:
    """Return when retention deleted the spans of an attempt; None if it did not."""
    row = connection.execute("SELECT at_ns FROM expired WHERE attempt_id = ?", (attempt_id,)).fetchone()
    return None if row is None else row[0]


def select_lacking(connection: Connection, attempt_id: str) -> int:
    """Return how many spans of an attempt had started and have not arrived."""
    (lacking,) = connection.execute(
        "SELECT coalesce(sum(started - arrived), 0) FROM arrivals WHERE attempt_id = ? AND arrived < started",
        (attempt_id,),
    ).fetchone()
    return lacking


def select_spans_without_attempt(connection: Connection, rollout_id: str) -> list[Span]:
    """Return the spans that name a rollout and no attempt, and those of their traces that name no attempt either."""
    rows = connection.execute(
        """SELECT spans.body, spans.scope, resources.body FROM spans JOIN resources ON resources.id = spans.resource_id
           WHERE attempt_id IS NULL AND trace_id IN
               (SELECT trace_id FROM spans WHERE rollout_id = ? AND attempt_id IS NULL)
           ORDER BY spans.start_ns, trace_id, span_id""",
        (rollout_id,),
    )
    return [decode_span(body, scope=scope, resource=decode_resource(resource)) for body, scope, resource in rows]


def without_parent(connection: Connection, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the spans that have a parent which is not in the store."""
    here = {(span.trace_id, span.span_id) for span in spans}
    return tuple(
        span
        for span in spans
        if span.parent_span_id is not None
        and (parent := (span.trace_id, span.parent_span_id)) not in here
        and connection.execute("SELECT 1 FROM spans WHERE trace_id = ? AND span_id = ?", parent).fetchone() is None
    )
