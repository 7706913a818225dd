"""What the store holds, in numbers, for the status page; cheap enough to ask every second."""

import sqlite3
from typing import TypedDict

from lightning_trainer.store.records import StepState
from lightning_trainer.types import AttemptState


class StoreCounts(TypedDict):
    spans: int
    calls: int
    """Records of the gateway: one for each call that it answered."""
    rollouts: int
    attempts: dict[str, int]
    """By state; every state is present."""
    steps: dict[str, int]
    """By state; every state is present."""


def count(connection: sqlite3.Connection) -> StoreCounts:
    def scalar(query: str) -> int:
        return connection.execute(query).fetchone()[0]

    def by_state(table: str, states: list[str]) -> dict[str, int]:
        found = dict(connection.execute(f"SELECT state, count(*) FROM {table} GROUP BY state").fetchall())
        return {state: found.get(state, 0) for state in states}

    return StoreCounts(
        spans=scalar("SELECT coalesce(max(seq), 0) FROM spans"),  # spans are never deleted, so seq has no holes
        calls=scalar("SELECT count(*) FROM spans WHERE scope = 'lightning.gateway'"),
        rollouts=scalar("SELECT count(DISTINCT rollout_id) FROM attempts"),
        attempts=by_state("attempts", [state.value for state in AttemptState]),
        steps=by_state("steps", [state.value for state in StepState]),
    )
