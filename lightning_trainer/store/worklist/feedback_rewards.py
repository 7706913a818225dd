"""The rewards made from feedback, in their own table next to their spans, and how to forget them and the feedback."""

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lightning_instrumentation import semconv

from lightning_trainer.otlp.span_codec import decode_span, encode_span
from lightning_trainer.samples.feedback.entries import SCOPE, is_feedback
from lightning_trainer.samples.feedback.review import Outcome, target_of
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.retention.sweep import delete_rows, kept_among
from lightning_trainer.types import Span


@dataclass(frozen=True, slots=True)
class Settled:
    """A reward made from feedback, and its span."""

    target: str
    trace_id: str
    span_id: str
    value: float
    number: int
    """How many rewards were made for the target before it."""


def select(connection: Connection, targets: Collection[str]) -> dict[str, Settled]:
    """Return the newest reward made from feedback for each of these targets that has one."""
    rows = connection.execute(
        """SELECT target, trace_id, span_id, value, number FROM settled
           WHERE target IN (SELECT value FROM json_each(?))
           AND number = (SELECT max(number) FROM settled AS other WHERE other.target = settled.target)""",
        (json.dumps(sorted(targets)),),
    )
    return {row[0]: Settled(*row) for row in rows}


def put(connection: Connection, made: Sequence[tuple[Outcome, Settled]]) -> list[tuple[Outcome, Settled]]:
    """Record which spans are rewards made from feedback, and return those to store.

    Rewards of deleted attempts are left out, and so are rewards in place of which another daemon has put its own.
    """
    kept = kept_among(connection, {outcome.attempt_id for outcome, _ in made})
    made = [(outcome, reward) for outcome, reward in made if outcome.attempt_id in kept]
    connection.executemany(
        "INSERT INTO settled VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(s.target, s.number, outcome.attempt_id, s.trace_id, s.span_id, s.value) for outcome, s in made],
    )
    recorded = select(connection, {reward.target for _, reward in made})
    return [(outcome, reward) for outcome, reward in made if recorded.get(reward.target) == reward]


def note(connection: Connection, new: Iterable[Span]) -> None:
    """Record rewards made from feedback whose record is missing: a restored journal brings back only their spans."""
    rewards = [
        one
        for span in new
        if span.scope == SCOPE and semconv.FEEDBACK_SOURCES in span.attributes
        for one in _rewards_of(span)
    ]
    if not rewards:
        return
    rows = connection.execute(
        "SELECT trace_id, span_id FROM settled WHERE attempt_id IN (SELECT value FROM json_each(?))",
        (json.dumps(sorted({attempt_id for _, attempt_id, *_ in rewards})),),
    )
    recorded = set(rows)
    for target, attempt_id, trace_id, span_id, value in rewards:
        if (trace_id, span_id) not in recorded:
            connection.execute(
                """INSERT INTO settled SELECT ?1, (SELECT coalesce(max(number) + 1, 0) FROM settled WHERE target = ?1),
                   ?2, ?3, ?4, ?5""",
                (target, attempt_id, trace_id, span_id, value),
            )


def _rewards_of(span: Span) -> Iterator[tuple[str, str, str, str, float]]:
    """Yield target, attempt id, trace id, span id, and value of each reward that a span carries."""
    for event in span.events:
        told = {**span.attributes, **event.attributes}
        attempt_id, name, value = (
            told.get(key) for key in (semconv.ATTEMPT_ID, semconv.EVALUATION_NAME, semconv.EVALUATION_SCORE)
        )
        part = told.get(semconv.RESPONSE_ID)
        if isinstance(attempt_id, str) and isinstance(name, str) and isinstance(value, int | float):
            target = target_of(attempt_id, part if isinstance(part, str) else None, name)
            yield target, attempt_id, span.trace_id, span.span_id, float(value)


def retract(connection: Connection, targets: Collection[str]) -> int:
    """Delete the rewards made from feedback for these targets; return how many spans were deleted."""
    listed = (json.dumps(sorted(targets)),)
    of_targets = "target IN (SELECT value FROM json_each(?))"
    keys = connection.execute(f"SELECT trace_id, span_id FROM settled WHERE {of_targets}", listed).fetchall()
    connection.execute(f"DELETE FROM settled WHERE {of_targets}", listed)
    return delete_spans(connection, keys)


def delete_spans(connection: Connection, keys: Iterable[tuple[str, str]]) -> int:
    """Delete spans of feedback and of rewards made from it; return how many there were.

    Any other span, such as a call that carries feedback as an event, stays, without the feedback.
    """
    seqs = []
    for key in keys:
        row = connection.execute(
            "SELECT seq, name, scope, body FROM spans WHERE trace_id = ? AND span_id = ?", key
        ).fetchone()
        if row is None:
            continue
        seq, name, scope, body = row
        if name.startswith("evaluate "):
            seqs.append(seq)
        else:
            body = encode_span(_without_feedback(decode_span(body, scope=scope, resource={})))
            left = (body, zlib.crc32(body), seq)
            connection.execute("UPDATE spans SET body = ?, checksum = ? WHERE seq = ?", left)
    return delete_rows(connection, seqs)


def _without_feedback(span: Span) -> Span:
    events = tuple(one for one in span.events if not is_feedback({**span.attributes, **one.attributes}))
    who = (semconv.FEEDBACK_SOURCE, semconv.FEEDBACK_KIND)
    return replace(
        span, events=events, attributes={name: value for name, value in span.attributes.items() if name not in who}
    )
