"""Totals of what the store holds and what was deleted, maintained incrementally: a query takes constant time."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypedDict

from lightning_trainer.store.connection import Connection
from lightning_trainer.store.records import StepState
from lightning_trainer.types import AttemptState

DELETED = "deleted/"
"""Prefix of the names of totals that count what was deleted since the store was created or repaired."""


class StoreCounts(TypedDict):
    """How much the store holds."""

    spans: int
    calls: int
    """Gateway records: one for each call that the gateway answered."""
    rollouts: int
    attempts: dict[str, int]
    """By state; every state is present. Attempts whose spans were deleted count until their names are forgotten."""
    steps: dict[str, int]
    """By state; every state is present."""


def add(connection: Connection, changes: Mapping[str, int]) -> None:
    """Increment totals by name."""
    connection.executemany(
        "INSERT INTO totals VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET value = totals.value + excluded.value",
        [(name, change) for name, change in changes.items() if change],
    )


def select(connection: Connection) -> dict[str, int]:
    """Return all totals by name."""
    return dict(connection.execute("SELECT name, value FROM totals").fetchall())


def count(connection: Connection) -> StoreCounts:
    """Return how much the store holds."""
    held = select(connection)
    return StoreCounts(
        spans=held.get("spans", 0),
        calls=held.get("calls", 0),
        rollouts=held.get("rollouts", 0),
        attempts={state.value: held.get(f"attempts/{state}", 0) for state in AttemptState},
        steps={state.value: held.get(f"steps/{state}", 0) for state in StepState},
    )


def states_of(connection: Connection, attempt_ids: Collection[str]) -> Counter[str]:
    """Return how many of some attempts are in each state, by the total's name."""
    rows = connection.execute(
        "SELECT state, count(*) FROM attempts WHERE attempt_id IN (SELECT value FROM json_each(?)) GROUP BY state",
        (json.dumps(sorted(attempt_ids)),),
    )
    return Counter({f"attempts/{state}": number for state, number in rows})


def rollouts_of(connection: Connection, rollout_ids: Collection[str]) -> int:
    """Return how many of some rollouts have an attempt."""
    (number,) = connection.execute(
        """SELECT count(*) FROM json_each(?)
           WHERE EXISTS (SELECT 1 FROM attempts WHERE attempts.rollout_id = json_each.value)""",
        (json.dumps(sorted(rollout_ids)),),
    ).fetchone()
    return number
