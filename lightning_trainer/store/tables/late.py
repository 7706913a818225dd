"""Which of some attempts a step has consumed already: what arrives for them now comes too late to be trained."""

import json
import sqlite3
from collections.abc import Collection


def select_consumed(
    connection: sqlite3.Connection,
    *,
    attempt_ids: Collection[str] = (),
    rollout_ids: Collection[str] = (),
    response_ids: Collection[str] = (),
    policy: str | None = None,
) -> dict[str, int]:
    """Return the step by attempt id, of attempts that are named, of a rollout's last one, or by a response of theirs.

    With ``policy`` only its steps count.

    A rollout's reward is that of its last attempt, so an earlier one that was consumed is none of its business.
    """
    names = (json.dumps(sorted(names)) for names in (attempt_ids, rollout_ids, response_ids))
    rows = connection.execute(_CONSUMED, (*names, policy))
    return dict(rows.fetchall())


_CONSUMED = """
    WITH named(attempt_id) AS (
        SELECT value FROM json_each(?1)
        UNION SELECT (SELECT attempt_id FROM attempts WHERE rollout_id = value
                      ORDER BY started_ns DESC, attempt_id DESC LIMIT 1) FROM json_each(?2)
        UNION SELECT attempt_id FROM spans
            WHERE response_id IN (SELECT value FROM json_each(?3)) AND attempt_id IS NOT NULL)
    SELECT attempt_id, min(step) FROM assignments WHERE attempt_id IN (SELECT attempt_id FROM named)
    AND (?4 IS NULL OR policy = ?4)
    GROUP BY attempt_id ORDER BY attempt_id"""
