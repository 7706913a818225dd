"""How many spans of an attempt have arrived, and how many there must be, counted by numbering.

Every process numbers its spans of an attempt. A span that ends says how many spans of its numbering had started by
then, and a gateway record says so for its caller's numbering. The difference is the number of missing spans. A
redelivered span is not new and is not counted again, so the counts do not depend on order or redelivery. Spans without
numbers are not counted.
"""

from collections.abc import Iterable

from lightning_instrumentation import semconv

from lightning_trainer.store.connection import Connection
from lightning_trainer.types import Span

_MOST = 2**31


def count(connection: Connection, spans: Iterable[Span]) -> None:
    """Count newly stored spans."""
    connection.executemany(
        """INSERT INTO arrivals(attempt_id, numbering, arrived, started) VALUES (?, ?, ?, ?)
           ON CONFLICT(attempt_id, numbering) DO UPDATE SET
           arrived = arrivals.arrived + excluded.arrived,
           started = CASE WHEN excluded.started > arrivals.started THEN excluded.started ELSE arrivals.started END""",
        [(*key, *counts) for key, counts in tally(spans).items()],
    )


def tally(spans: Iterable[Span]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return by (attempt id, numbering) how many of these spans have a number, and how many must have started."""
    seen: dict[tuple[str, str], tuple[int, int]] = {}
    for span in spans:
        attempt_id = span.attributes.get(semconv.ATTEMPT_ID)
        numbering = span.attributes.get(semconv.SEQUENCE)
        if not isinstance(attempt_id, str) or not isinstance(numbering, str):
            continue
        number = _number(span, semconv.SEQUENCE_NUMBER)
        arrived, started = seen.get((attempt_id, numbering), (0, 0))
        seen[attempt_id, numbering] = (
            arrived + (number > 0),
            max(started, number, _number(span, semconv.SEQUENCE_STARTED)),
        )
    return seen


def _number(span: Span, name: str) -> int:
    """Return an attribute that is a number, else 0; the gateway copies its caller's numbers from a header, as text."""
    value = span.attributes.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST else 0


def select_missing(connection: Connection, policy: str | None = None) -> dict[str, int]:
    """Return the number of missing spans of every incomplete ended attempt that no step (of that policy, or of any) has
    consumed."""
    return dict(
        connection.execute(
            """SELECT attempt_id, sum(started - arrived) FROM arrivals JOIN attempts USING (attempt_id)
               WHERE arrived < started AND ended_ns IS NOT NULL
               AND NOT EXISTS (SELECT 1 FROM assignments WHERE assignments.attempt_id = attempts.attempt_id
                               AND (:policy IS NULL OR assignments.policy = :policy))
               GROUP BY attempt_id""",
            {"policy": policy},
        ).fetchall()
    )
