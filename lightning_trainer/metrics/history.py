"""Rows of steps, made from a store: what a step's numbers are is a function of what is recorded of it."""

import sqlite3

from lightning_trainer.metrics.row import StepMetrics, step_metrics
from lightning_trainer.store.records import StepState
from lightning_trainer.store.tables import steps as step_table
from lightning_trainer.store.tables import versions as version_table


def select_rows(
    connection: sqlite3.Connection,
    policy: str,
    *,
    only: int | None = None,
    after: int | None = None,
    oldest: int | None = None,
    newest: int | None = None,
) -> list[StepMetrics]:
    """Return the rows of steps that have ended, first to last.

    Args:
        only: of this one alone.
        after: only those after this one.
        oldest: of these only so many, the first ones.
        newest: of these only so many, the last ones.
    """
    records = step_table.select_steps(connection, policy, only=only, after=after, oldest=oldest, newest=newest)
    return [
        step_metrics(
            policy,
            record,
            step_table.select_ledger(connection, policy, record.step),
            version_table.select_one(connection, policy, record.step),
        )
        for record in records
        if record.state is not StepState.ASSIGNED
    ]
