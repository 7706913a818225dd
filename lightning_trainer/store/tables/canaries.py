"""Canaries: candidates that answered a share of live rollouts, with the evidence and the decision."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_trainer.store.connection import Connection

_NAMES = 500
_LIVE = """coalesce(mode, 'train') = 'train' AND EXISTS (SELECT 1 FROM participations
           WHERE participations.policy = ? AND participations.attempt_id = attempts.attempt_id)"""
"""Attempts that users wait for and of which the policy answered calls."""


@dataclass(frozen=True, slots=True)
class CanaryRecord:
    """The canary of one candidate."""

    policy: str
    version: int
    live: int
    """The version that it was compared with."""
    state: str
    """A ``versions.sequential.Decision``."""
    began_ns: int
    ended_ns: int | None
    evidence: Mapping[str, Any]
    reason: str | None
    """Why it was not promoted, or that a person promoted it."""


def put(connection: Connection, record: CanaryRecord) -> None:
    """Write a candidate's record, replacing the previous one."""
    connection.execute(
        """INSERT INTO canaries VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(policy, version) DO UPDATE SET
           live = excluded.live, state = excluded.state, began_ns = excluded.began_ns, ended_ns = excluded.ended_ns,
           evidence = excluded.evidence, reason = excluded.reason""",
        (
            *(record.policy, record.version, record.live, record.state, record.began_ns, record.ended_ns),
            *(json.dumps(dict(record.evidence)), record.reason),
        ),
    )


def select(connection: Connection, policy: str, first: int, last: int) -> dict[int, CanaryRecord]:
    """Return the candidates from ``first`` to ``last`` by version."""
    rows = connection.execute(
        "SELECT * FROM canaries WHERE policy = ? AND version BETWEEN ? AND ?", (policy, first, last)
    )
    found = {}
    for name, version, live, state, began_ns, ended_ns, evidence, reason in rows:
        found[version] = CanaryRecord(name, version, live, state, began_ns, ended_ns, json.loads(evidence), reason)
    return found


def select_open(connection: Connection, policy: str) -> list[CanaryRecord]:
    """Return the candidates on which nothing is decided yet."""
    rows = connection.execute("SELECT version FROM canaries WHERE policy = ? AND ended_ns IS NULL", (policy,))
    return [select(connection, policy, version, version)[version] for (version,) in rows.fetchall()]


def select_rollouts(connection: Connection, policy: str, since_ns: int, known: Sequence[str]) -> list[str]:
    """Return the first of the policy's live attempts that began since then, have ended, and are not in ``known``."""
    rows = connection.execute(
        f"""SELECT attempt_id FROM attempts WHERE started_ns >= ? AND ended_ns IS NOT NULL AND {_LIVE}
            AND attempt_id NOT IN (SELECT value FROM json_each(?)) ORDER BY started_ns LIMIT ?""",
        (since_ns, policy, json.dumps(list(known)), _NAMES),
    )
    return [attempt_id for (attempt_id,) in rows]


def select_shadows(connection: Connection, policy: str, since_ns: int, known: Sequence[str]) -> list[str]:
    """Return the first of the shadow attempts of the policy's candidates that began since then and are not in
    ``known``."""
    rows = connection.execute(
        """SELECT attempt_id FROM attempts WHERE started_ns >= ? AND mode = 'shadow'
           AND EXISTS (SELECT 1 FROM participations
                       WHERE participations.policy = ? AND participations.attempt_id = attempts.attempt_id)
           AND attempt_id NOT IN (SELECT value FROM json_each(?)) ORDER BY started_ns LIMIT ?""",
        (since_ns, policy, json.dumps(list(known)), _NAMES),
    )
    return [attempt_id for (attempt_id,) in rows]


def select_before(connection: Connection, policy: str, before_ns: int, most: int) -> list[str]:
    """Return the policy's newest live attempts that had ended by then."""
    rows = connection.execute(
        f"SELECT attempt_id FROM attempts WHERE ended_ns < ? AND {_LIVE} ORDER BY ended_ns DESC LIMIT ?",
        (before_ns, policy, most),
    )
    return [attempt_id for (attempt_id,) in rows]
