"""Which policies answered calls of which attempts, as the gateway's records say.

Only where there are several policies does it matter: a step of one takes the groups that it took part in.
"""

import sqlite3
from collections.abc import Iterable

from lightning_instrumentation import semconv

from lightning_trainer.types import Span


def note(connection: sqlite3.Connection, spans: Iterable[Span]) -> None:
    """Note what newly stored spans say; again is the same as once."""
    seen = {
        (policy, attempt_id)
        for span in spans
        if span.scope == semconv.GATEWAY_SCOPE
        and isinstance(policy := span.attributes.get(semconv.POLICY), str)
        and isinstance(attempt_id := span.attributes.get(semconv.ATTEMPT_ID), str)
    }
    connection.executemany(
        "INSERT INTO participations(policy, attempt_id) VALUES (?, ?) ON CONFLICT DO NOTHING", sorted(seen)
    )


def select_waiting(connection: sqlite3.Connection, policy: str) -> set[str]:
    """Return the attempts that a policy took part in and that no step of it has consumed."""
    rows = connection.execute(
        """SELECT attempt_id FROM participations WHERE policy = :policy AND NOT EXISTS
           (SELECT 1 FROM assignments WHERE assignments.policy = :policy
            AND assignments.attempt_id = participations.attempt_id)""",
        {"policy": policy},
    )
    return {attempt_id for (attempt_id,) in rows}
