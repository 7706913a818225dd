"""Evaluation attempts in the order of their latest changes, so that readers can continue where they stopped.

A span belongs to an evaluation by its attempt, its rollout, or, if it names neither, its response.
"""

import json
from collections.abc import Iterable

from lightning_instrumentation import semconv

from lightning_trainer.store.connection import Connection
from lightning_trainer.types import Span


def note(connection: Connection, spans: Iterable[Span]) -> None:
    """Renumber the evaluations that newly stored spans belong to."""
    attempts: set[str] = set()
    rollouts: set[str] = set()
    responses: set[str] = set()
    kinds = ((semconv.ATTEMPT_ID, attempts), (semconv.ROLLOUT_ID, rollouts), (semconv.RESPONSE_ID, responses))
    for span in spans:
        # A reward may name its subject in its event.
        told = (event.attributes for event in span.events if event.name == semconv.EVALUATION_EVENT)
        for attributes in (span.attributes, *told):
            for name, found in kinds:
                if isinstance(value := attributes.get(name), str) and value:
                    found.add(value)
                    break
    if attempts or rollouts or responses:
        names = [json.dumps(sorted(found)) for found in (attempts, rollouts, responses)]
        found = [attempt_id for (attempt_id,) in connection.execute(_NAMED, names)]
        connection.executemany(_NUMBER, [(one,) for one in found])


_NUMBER = """
    INSERT INTO evaluations(change, attempt_id) SELECT coalesce(max(change), 0) + 1, ? FROM
        (SELECT max(change) AS change FROM evaluations
         UNION ALL SELECT max(position) FROM cursors WHERE name LIKE 'verdicts/%') AS given WHERE true
    ON CONFLICT(attempt_id) DO UPDATE SET change = excluded.change"""
"""The new number is also above the position of every reader, since the newest evaluation may have been deleted after it
was read (``versions/held_out.py``)."""
_NAMED = """
    WITH named(attempt_id) AS (
        SELECT value FROM json_each(?1)
        UNION SELECT attempt_id FROM attempts WHERE rollout_id IN (SELECT value FROM json_each(?2))
        UNION SELECT attempt_id FROM spans
            WHERE response_id IN (SELECT value FROM json_each(?3)) AND attempt_id IS NOT NULL)
    SELECT attempt_id FROM attempts WHERE attempt_id IN (SELECT attempt_id FROM named) AND mode = 'evaluate'
    ORDER BY attempt_id"""


def select_changed(connection: Connection, after: int, most: int) -> list[tuple[int, str]]:
    """Return number and id of the first ``most`` ended evaluations that changed after number ``after``."""
    return connection.execute(
        """SELECT change, attempt_id FROM evaluations JOIN attempts USING (attempt_id)
           WHERE change > ? AND ended_ns IS NOT NULL ORDER BY change LIMIT ?""",
        (after, most),
    ).fetchall()


def count_changed(connection: Connection, after: int) -> int:
    """Return how many ended evaluations changed after number ``after``."""
    (count,) = connection.execute(
        """SELECT count(*) FROM evaluations JOIN attempts USING (attempt_id)
           WHERE change > ? AND ended_ns IS NOT NULL""",
        (after,),
    ).fetchone()
    return count
