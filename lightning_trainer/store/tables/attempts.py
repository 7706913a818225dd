"""Attempts, as derived from spans.

The one span with ``lightning.rollout.root`` covers a whole attempt: its arrival shows that the attempt has ended, and
how. Before that, any span that names an attempt and its rollout shows that the attempt is running. The row is the same
in whatever order the spans arrive.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lightning_instrumentation import semconv

from lightning_trainer.store.connection import ALL, Connection
from lightning_trainer.store.tables import participations, totals
from lightning_trainer.types import Attempt, AttemptState, AttributeValue, RolloutMode, Span, SpanStatus

_STORED = "attempt_id, rollout_id, task_id, group_id, mode, state, started_ns, ended_ns, error"
COLUMNS = f"""{", ".join(f"attempts.{name}" for name in _STORED.split(", "))},
    EXISTS (SELECT 1 FROM drops WHERE drops.attempt_id = attempts.attempt_id)"""
"""The columns from which :func:`read` makes an attempt."""
_MODES = {mode.value: mode for mode in RolloutMode}


def attempt_of(span: Span) -> Attempt | None:
    """Return the span's attempt: ended if the span is the root, else running; None if the span names no attempt."""
    sighting = _sight(span)
    return None if sighting is None else sighting.attempt()


@dataclass(frozen=True, slots=True)
class _Sighting:
    attempt_id: str
    rollout_id: str
    task_id: str | None
    group_id: str | None
    mode: RolloutMode | None
    state: AttemptState
    started_ns: int
    ended_ns: int | None
    error: str | None

    def attempt(self) -> Attempt:
        task_id = self.task_id or self.rollout_id
        return Attempt(
            attempt_id=self.attempt_id,
            rollout_id=self.rollout_id,
            task_id=task_id,
            group_id=self.group_id or task_id,
            mode=self.mode or RolloutMode.TRAIN,
            state=self.state,
            started_ns=self.started_ns,
            ended_ns=self.ended_ns,
            error=self.error,
        )


def _sight(span: Span) -> _Sighting | None:
    attempt_id = _text(span.attributes, semconv.ATTEMPT_ID)
    rollout_id = _text(span.attributes, semconv.ROLLOUT_ID)
    if attempt_id is None or rollout_id is None:
        return None
    root = span.attributes.get(semconv.ROLLOUT_ROOT) is True
    failed = span.status is SpanStatus.ERROR
    ended_state = AttemptState.FAILED if failed else AttemptState.SUCCEEDED
    return _Sighting(
        attempt_id=attempt_id,
        rollout_id=rollout_id,
        task_id=_text(span.attributes, semconv.TASK_ID),
        group_id=_text(span.attributes, semconv.GROUP_ID),
        mode=_mode(span.attributes),
        state=ended_state if root else AttemptState.RUNNING,
        started_ns=span.start_ns,
        ended_ns=span.end_ns if root else None,
        error=(span.status_message or "failed without a message") if root and failed else None,
    )


def _mode(attributes: Mapping[str, AttributeValue]) -> RolloutMode | None:
    value = _text(attributes, semconv.ROLLOUT_MODE)
    if value is None:
        return None
    # An unknown mode is not trained: something meant as an evaluation must never become training data.
    return _MODES.get(value, RolloutMode.EVALUATE)


def _text(attributes: Mapping[str, AttributeValue], name: str) -> str | None:
    value = attributes.get(name)
    return value if isinstance(value, str) and value else None


def upsert(connection: Connection, spans: Iterable[Span]) -> set[str]:
    """Record what newly stored spans say about their attempts; return those whose root is among the spans."""
    sightings = [(sighting, span) for span in spans if (sighting := _sight(span)) is not None]
    attempt_ids = {sighting.attempt_id for sighting, _ in sightings}
    rollout_ids = {sighting.rollout_id for sighting, _ in sightings}
    states, rollouts = totals.states_of(connection, attempt_ids), totals.rollouts_of(connection, rollout_ids)
    _record(connection, sightings)
    changes = totals.states_of(connection, attempt_ids)
    changes.subtract(states)
    totals.add(connection, {**changes, "rollouts": totals.rollouts_of(connection, rollout_ids) - rollouts})
    return {sighting.attempt_id for sighting, _ in sightings if sighting.state is not AttemptState.RUNNING}


def _record(connection: Connection, sightings: Iterable[tuple[_Sighting, Span]]) -> None:
    running: dict[tuple[str | None, ...], _Sighting] = {}
    for sighting, span in sightings:
        if sighting.state is AttemptState.RUNNING:
            # These spans differ only in their start, as far as the row is concerned: one write is enough for all.
            alike = (sighting.attempt_id, sighting.rollout_id, sighting.task_id, sighting.group_id, sighting.mode)
            earliest = running.setdefault(alike, sighting)
            if sighting.started_ns < earliest.started_ns:
                running[alike] = sighting
        else:
            _write(connection, _ENDED, sighting, span.span_id)
    for earliest in running.values():
        _write(connection, _RUNNING, earliest, None)


_INSERT = f"INSERT INTO attempts({_STORED}, root_span_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def _smaller(column: str) -> str:
    """Return SQL for the smaller of the stored and the new value, ignoring NULL."""
    old, new = f"attempts.{column}", f"excluded.{column}"
    return f"{column} = CASE WHEN {old} IS NULL OR {new} < {old} THEN {new} ELSE {old} END"


_RUNNING = f"""{_INSERT} ON CONFLICT(attempt_id) DO UPDATE SET
    {", ".join(map(_smaller, ("started_ns", "rollout_id", "task_id", "group_id", "mode")))}
    WHERE attempts.state = 'running'"""
# Two roots for one attempt are a caller's mistake; the earlier one counts, whichever arrives first.
_ENDED = f"""{_INSERT} ON CONFLICT(attempt_id) DO UPDATE SET
    rollout_id = excluded.rollout_id, task_id = excluded.task_id, group_id = excluded.group_id, mode = excluded.mode,
    state = excluded.state, started_ns = excluded.started_ns, ended_ns = excluded.ended_ns, error = excluded.error,
    root_span_id = excluded.root_span_id
    WHERE attempts.state = 'running'
    OR (excluded.started_ns, excluded.root_span_id) < (attempts.started_ns, attempts.root_span_id)"""


def _write(connection: Connection, statement: str, seen: _Sighting, root_span_id: str | None) -> None:
    row = (seen.attempt_id, seen.rollout_id, seen.task_id, seen.group_id, seen.mode, seen.state)
    connection.execute(statement, (*row, seen.started_ns, seen.ended_ns, seen.error, root_span_id))


def select_ended(
    connection: Connection,
    *,
    mode: RolloutMode | None,
    policy: str | None,
    took_part: bool = False,
    earlier: bool = True,
) -> list[Attempt]:
    """Return ended attempts that no step (of that policy, or of any) has consumed, oldest end first.

    Args:
        took_part: only attempts that share their group or task with an attempt in which the policy took part.
        earlier: also attempts that had begun before the policy was first started.
    """
    rows = connection.execute(
        f"""WITH waiting AS MATERIALIZED (
                SELECT {_GROUP} AS "group", coalesce(task_id, rollout_id) AS task
                FROM participations JOIN attempts USING (attempt_id)
                WHERE :took_part = 1 AND participations.policy = :policy AND {_NOT_CONSUMED})
            SELECT {COLUMNS} FROM attempts WHERE ended_ns IS NOT NULL
            AND (:mode IS NULL OR coalesce(mode, 'train') = :mode) AND {_NOT_CONSUMED}
            AND (:took_part = 0 OR {_GROUP} IN (SELECT "group" FROM waiting)
                 OR coalesce(task_id, rollout_id) IN (SELECT task FROM waiting))
            AND (:last_earlier = 0 OR NOT EXISTS (SELECT 1 FROM spans
                 WHERE spans.attempt_id = attempts.attempt_id AND spans.seq <= :last_earlier))
            ORDER BY ended_ns, attempt_id""",
        {
            "mode": mode,
            "policy": policy,
            "took_part": took_part,
            "last_earlier": 0 if earlier else participations.last_earlier(connection, policy) or 0,
        },
    )
    return [read(row) for row in rows]


_GROUP = "coalesce(group_id, task_id, rollout_id)"
_NOT_CONSUMED = """NOT EXISTS (SELECT 1 FROM assignments WHERE assignments.attempt_id = attempts.attempt_id
    AND (:policy IS NULL OR assignments.policy = :policy))"""


def count_ended(
    connection: Connection,
    prefix: str,
    *,
    mode: RolloutMode,
    policy: str | None = None,
    taken: tuple[str, int, int] | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> dict[str, int]:
    """Return the number of ended attempts of a mode, by group id, for groups whose id begins with ``prefix``.

    Args:
        policy: only groups in which this policy took part in some attempt.
        taken: a policy and two steps: only attempts that the policy's steps after the first and up to the second have
            consumed.
        after: only groups after this one, in order of id.
        limit: maximum number of groups.
    """
    # A range of the index of groups; U+10FFFF sorts after every possible continuation of an id.
    behind = after is not None and after >= prefix
    taker, beyond_step, last_step = taken or (None, 0, 0)
    source, of_taken = "attempts", ""
    if taken is not None:
        source = """(SELECT attempt_id FROM assignments WHERE policy = :taker AND step > :beyond_step
            AND step <= :last_step) AS taken CROSS JOIN attempts"""
        of_taken = "AND taken.attempt_id = attempts.attempt_id"
    rows = connection.execute(
        f"""SELECT {_GROUP} AS "group", count(*) FROM {source}
            WHERE {_GROUP} {">" if behind else ">="} :first AND {_GROUP} < :beyond
            AND ended_ns IS NOT NULL AND coalesce(mode, 'train') = :mode {of_taken}
            AND (:policy IS NULL OR EXISTS (
                SELECT 1 FROM attempts AS member JOIN participations USING (attempt_id)
                WHERE coalesce(member.group_id, member.task_id, member.rollout_id) =
                      coalesce(attempts.group_id, attempts.task_id, attempts.rollout_id)
                AND participations.policy = :policy))
            GROUP BY 1 ORDER BY 1 LIMIT :limit""",
        {
            "first": after if behind else prefix,
            "beyond": prefix + "\U0010ffff",
            "mode": mode,
            "policy": policy,
            "taker": taker,
            "beyond_step": beyond_step,
            "last_step": last_step,
            "limit": ALL if limit is None else limit,
        },
    )
    return dict(rows.fetchall())


def select(
    connection: Connection,
    *,
    attempt_ids: Sequence[str] | None = None,
    rollout_id: str | None = None,
    group_id: str | None = None,
    task_id: str | None = None,
    mode: RolloutMode | None = None,
    state: AttemptState | None = None,
    ended_since_ns: int | None = None,
    limit: int | None = None,
) -> list[Attempt]:
    """Return the attempts that meet every given condition, oldest start first; with a limit, the newest of them."""
    conditions: dict[str, object] = {
        "attempt_id IN (SELECT value FROM json_each(?))": None
        if attempt_ids is None
        else json.dumps(list(attempt_ids)),
        "rollout_id = ?": rollout_id,
        "coalesce(group_id, task_id, rollout_id) = ?": group_id,
        "task_id = ?": task_id,
        "coalesce(mode, 'train') = ?": mode,
        "state = ?": state,
        "ended_ns >= ?": ended_since_ns,
    }
    asked = {condition: value for condition, value in conditions.items() if value is not None}
    where = " AND ".join(asked) or "true"
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM attempts WHERE {where} ORDER BY started_ns DESC, attempt_id DESC LIMIT ?",
        (*asked.values(), ALL if limit is None else limit),
    ).fetchall()
    return [read(row) for row in reversed(rows)]


def read(row: tuple) -> Attempt:
    """Make an attempt from a row of ``COLUMNS``."""
    attempt_id, rollout_id, task_id, group_id, mode, state, started_ns, ended_ns, error, dropped = row
    if dropped:
        mode = RolloutMode.DROPPED
    return _Sighting(
        attempt_id=attempt_id,
        rollout_id=rollout_id,
        task_id=task_id,
        group_id=group_id,
        mode=None if mode is None else RolloutMode(mode),
        state=AttemptState(state),
        started_ns=started_ns,
        ended_ns=ended_ns,
        error=error,
    ).attempt()
