"""The span table: the OTLP bytes, with the columns that queries need next to them.

Invariant: (trace id, span id) is the key and the first delivery wins; redelivery changes nothing.
"""

import json
import sqlite3
import time
import zlib
from collections.abc import Sequence

from lightning_instrumentation import semconv

from lightning_trainer.otlp.span_codec import decode_resource, decode_span, encode_resource, encode_span
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.retention.sweep import expired_among
from lightning_trainer.store.tables import arrivals, attempts, evaluations, feedback, forgotten, participations, totals
from lightning_trainer.store.worklist import waiting
from lightning_trainer.types import AttributeValue, Span

_MARK_EVERY_NS = 60 * 10**9
_LONGEST_ARRAY = 64
"""More than the number of choices of any answer."""


def insert(connection: Connection, spans: Sequence[Span]) -> list[Span]:
    """Write spans, and what they say about their attempts; return those that were new.

    Spans of an attempt that retention has deleted do not count as new: they were stored before.

    Raises:
        MalformedTelemetryError: a span cannot be written as OTLP.
    """
    spans = forgotten.without(connection, _without_expired(connection, spans))
    resource_ids = _resource_ids(connection, spans)
    before = last(connection)
    rows = [_columns(span, resource_ids[id(span.resource)]) for span in spans]
    written = _written(connection, rows) if rows else 0
    if written <= 0:
        return []
    new = list(spans) if written == len(spans) else _stored_after(connection, before, spans)
    note(connection, new)
    return new


def _written(connection: Connection, rows: Sequence[tuple]) -> int:
    """Insert rows and return how many were new. Numbers only increase: policies and readers remember how far they got.

    SQLite continues from the newest row, so a row with the last number given out stands in for deleted ones meanwhile.
    """
    taken = None
    if isinstance(connection, sqlite3.Connection):
        # Marks count only if something was deleted: a new store has a mark without a span, which its schema made.
        (taken,) = connection.execute(
            """SELECT max(seq) FROM received WHERE seq > (SELECT coalesce(max(seq), 0) FROM spans)
               AND EXISTS (SELECT 1 FROM totals WHERE name = ?)""",
            (f"{totals.DELETED}spans",),
        ).fetchone()
    if taken is None:
        return connection.executemany(INSERT, rows).rowcount
    connection.execute(
        """INSERT INTO spans(seq, trace_id, span_id, name, start_ns, end_ns, scope, resource_id, body)
           SELECT ?, '', '', '', 0, 0, '', id, '' FROM resources LIMIT 1""",
        (taken,),
    )
    written = connection.executemany(INSERT, rows).rowcount
    connection.execute("DELETE FROM spans WHERE seq = ?", (taken,))
    return written


def note(connection: Connection, new: Sequence[Span]) -> None:
    """Record what newly stored spans say about attempts, their completeness, policies, and evaluations."""
    totals.add(connection, {"spans": len(new), "calls": sum(span.scope == semconv.GATEWAY_SCOPE for span in new)})
    roots = attempts.upsert(connection, new)
    arrivals.count(connection, new)
    taking_part = participations.note(connection, new)
    waiting.ended(connection, roots)
    waiting.heard_of(connection, taking_part)
    evaluations.note(connection, new)
    feedback.note(connection, new)
    _mark_time(connection, time.time_ns())


def _without_expired(connection: Connection, spans: Sequence[Span]) -> Sequence[Span]:
    named = {value for span in spans if isinstance(value := span.attributes.get(semconv.ATTEMPT_ID), str)}
    gone = expired_among(connection, named)
    return [span for span in spans if span.attributes.get(semconv.ATTEMPT_ID) not in gone] if gone else spans


def _mark_time(connection: Connection, now_ns: int) -> None:
    """Record, once a minute, the last span that has arrived: age is by our clock, whatever the clients' clocks say."""
    mark = connection.execute("SELECT at_ns FROM received ORDER BY seq DESC LIMIT 1").fetchone()
    if mark is None or now_ns - mark[0] >= _MARK_EVERY_NS or now_ns < mark[0]:
        connection.execute(
            "INSERT INTO received VALUES (?, ?) ON CONFLICT(seq) DO UPDATE SET at_ns = excluded.at_ns",
            (last(connection), now_ns),
        )


def _resource_ids(connection: Connection, spans: Sequence[Span]) -> dict[int, int]:
    """Return the row of each distinct mapping, by the object's ``id``: spans of one delivery share their resource."""
    resources = {id(span.resource): span.resource for span in spans}
    return {key: _resource_id(connection, encode_resource(resource)) for key, resource in resources.items()}


def _resource_id(connection: Connection, body: bytes) -> int:
    found = connection.execute(SELECT_RESOURCE, (body,)).fetchone()
    if found is None:
        connection.execute("INSERT INTO resources(body) VALUES (?)", (body,))
        found = connection.execute(SELECT_RESOURCE, (body,)).fetchone()
    return found[0]


SELECT_RESOURCE = "SELECT id FROM resources WHERE body = ?"


def _stored_after(connection: Connection, last: int, spans: Sequence[Span]) -> list[Span]:
    """Return the spans that were written after row ``last``; of two with the same key, that is the first."""
    stored = set(connection.execute("SELECT trace_id, span_id FROM spans WHERE seq > ?", (last,)))
    first: dict[tuple[str, str], Span] = {}
    for span in spans:
        first.setdefault((span.trace_id, span.span_id), span)
    return [span for key, span in first.items() if key in stored]


INSERT = """INSERT INTO spans(trace_id, span_id, parent_span_id, name, start_ns, end_ns, rollout_id, attempt_id,
    operation, response_id, scope, resource_id, body, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT(trace_id, span_id) DO NOTHING"""


def _columns(span: Span, resource_id: int) -> tuple:
    body = encode_span(span)
    indexed = (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID, semconv.OPERATION, semconv.RESPONSE_ID)
    return (
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.name,
        span.start_ns,
        span.end_ns,
        *(value if isinstance(value := span.attributes.get(name), str) and value else None for name in indexed),
        span.scope,
        resource_id,
        body,
        zlib.crc32(body),
    )


def last(connection: Connection) -> int:
    """Return the number of the newest span; 0 if there is none. Numbers only increase."""
    return connection.execute("SELECT coalesce(max(seq), 0) FROM spans").fetchone()[0]


def has_response(connection: Connection, response_id: str, attempt_id: str | None = None) -> bool:
    """Whether a span names the response; with ``attempt_id``, one of that attempt."""
    found = connection.execute(
        "SELECT 1 FROM spans WHERE response_id = ?1 AND (?2 IS NULL OR attempt_id = ?2) LIMIT 1",
        (response_id, attempt_id),
    ).fetchone()
    return found is not None


def attempts_of_response(connection: Connection, response_id: str, most: int = 3) -> list[str]:
    """Return the first ``most`` attempts whose calls have the response id."""
    rows = connection.execute(
        """SELECT DISTINCT attempt_id FROM spans WHERE response_id = ? AND attempt_id IS NOT NULL
           AND name NOT LIKE 'evaluate %' ORDER BY attempt_id LIMIT ?""",
        (response_id, most),
    )
    return [attempt_id for (attempt_id,) in rows]


def has_rollout(connection: Connection, rollout_id: str) -> bool:
    """Whether a span names the rollout."""
    return connection.execute("SELECT 1 FROM spans WHERE rollout_id = ? LIMIT 1", (rollout_id,)).fetchone() is not None


def select_of_trace(connection: Connection, trace_id: str) -> list[Span]:
    """Return the spans of a trace, oldest first."""
    rows = connection.execute(
        """SELECT spans.body, spans.scope, resources.body FROM spans JOIN resources ON resources.id = spans.resource_id
           WHERE trace_id = ? ORDER BY spans.start_ns, span_id""",
        (trace_id,),
    )
    return [decode_span(body, scope=scope, resource=decode_resource(resource)) for body, scope, resource in rows]


def select_of_attempts(connection: Connection, attempt_ids: Sequence[str]) -> list[Span]:
    """Return all spans of the attempts, oldest first.

    These are: spans that carry one of the ids; the spans of their traces without an attempt id; spans that name only
    the attempts' rollout (a late evaluation); and spans without an attempt that share a response id with these (a
    gateway record whose caller sent no trace context).
    """
    return _decoded(connection.execute(_OF_ATTEMPTS, (json.dumps(list(attempt_ids)),)).fetchall())


def select_for_rewards(connection: Connection, attempt_ids: Sequence[str], *, calls: bool) -> list[Span]:
    """Return the attempts' spans as :func:`select_of_attempts` does, but with long arrays emptied: these are token ids,
    as other instrumentations write them.

    Args:
        calls: whether to include model calls, which are most of what an attempt records; their scope or operation
            identifies them.
    """
    rows = connection.execute(_OF_ATTEMPTS if calls else _BESIDE_CALLS, (json.dumps(list(attempt_ids)),)).fetchall()
    return _decoded(rows, longest_array=_LONGEST_ARRAY)


def _decoded(rows: Sequence[tuple], *, longest_array: int | None = None) -> list[Span]:
    resources: dict[int, dict[str, AttributeValue]] = {}
    spans = []
    for body, scope, resource_id, resource in rows:
        if resource_id not in resources:
            resources[resource_id] = decode_resource(resource)
        spans.append(decode_span(body, scope=scope, resource=resources[resource_id], longest_array=longest_array))
    return spans


def numbers_of_attempts(connection: Connection, attempt_ids: Sequence[str]) -> list[int]:
    """Return the numbers of the spans that :func:`select_of_attempts` returns."""
    rows = connection.execute(f"{_FOUND} SELECT seq FROM found", (json.dumps(list(attempt_ids)),))
    return [seq for (seq,) in rows]


def attempts_since(connection: Connection, after: int) -> list[str]:
    """Return the attempts that spans stored after row ``after`` belong to, as in :func:`select_of_attempts`.

    The cost depends only on how much was stored since.
    """
    rows = connection.execute(
        """WITH new AS MATERIALIZED (
               SELECT trace_id, rollout_id, attempt_id, response_id FROM spans WHERE seq > ?),
           near AS MATERIALIZED (
               SELECT trace_id, rollout_id, attempt_id FROM new
               UNION SELECT trace_id, rollout_id, attempt_id FROM spans WHERE response_id IN
                   (SELECT response_id FROM new WHERE attempt_id IS NULL AND response_id IS NOT NULL))
           SELECT attempt_id FROM near WHERE attempt_id IS NOT NULL
           UNION SELECT attempt_id FROM attempts
               WHERE rollout_id IN (SELECT rollout_id FROM near WHERE attempt_id IS NULL)
           UNION SELECT attempt_id FROM spans WHERE attempt_id IS NOT NULL
               AND trace_id IN (SELECT trace_id FROM near WHERE attempt_id IS NULL)
           ORDER BY attempt_id""",
        (after,),
    )
    return [attempt_id for (attempt_id,) in rows]


_FOUND = """
    WITH wanted(attempt_id) AS MATERIALIZED (SELECT value FROM json_each(?)),
    own AS MATERIALIZED (SELECT seq, trace_id FROM spans WHERE attempt_id IN (SELECT attempt_id FROM wanted)),
    near(seq) AS MATERIALIZED (
        SELECT seq FROM own
        UNION SELECT seq FROM spans
            WHERE trace_id IN (SELECT DISTINCT trace_id FROM own) AND attempt_id IS NULL
        UNION SELECT seq FROM spans
            WHERE rollout_id IN (SELECT rollout_id FROM attempts WHERE attempt_id IN (SELECT attempt_id FROM wanted))
            AND attempt_id IS NULL),
    found(seq) AS (
        SELECT seq FROM near
        UNION SELECT seq FROM spans WHERE attempt_id IS NULL AND response_id IN
            (SELECT response_id FROM spans WHERE seq IN (SELECT seq FROM near) AND response_id IS NOT NULL))
    """
_SPANS = f"""{_FOUND}
    SELECT spans.body, spans.scope, spans.resource_id, resources.body
    FROM found JOIN spans USING (seq) JOIN resources ON resources.id = spans.resource_id"""
_IN_ORDER = "ORDER BY spans.start_ns, spans.trace_id, spans.span_id"
_OF_ATTEMPTS = f"{_SPANS} {_IN_ORDER}"
_CALLS = ", ".join(f"'{one}'" for one in (semconv.CHAT, semconv.TEXT_COMPLETION, semconv.GENERATE_CONTENT))
_BESIDE_CALLS = f"""{_SPANS}
    WHERE spans.scope <> '{semconv.GATEWAY_SCOPE}' AND coalesce(spans.operation, '') NOT IN ({_CALLS}) {_IN_ORDER}"""
