"""The steps that warnings look at: the first and the newest of a run, without those that a rollback took back.

The weights of such steps are gone, and with them what was wrong with them, or what was better than now. A step that
trained nothing belongs to the version before it.
"""

import math
from collections.abc import Sequence

from lightning_trainer.metrics.row import StepMetrics, select_rows
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.records import Rollback
from lightning_trainer.store.tables.versions import select_rollbacks

FIRST = 50
"""Number of first rows of a run, for warnings to compare with."""
RECENT = 500
"""Number of newest rows; those in between are in the store and in the files."""


def on_path(rows: Sequence[StepMetrics], rollbacks: Sequence[Rollback]) -> list[StepMetrics]:
    """Return the rows of the steps that the present weights are made of.

    Args:
        rollbacks: in chronological order.
    """
    parts: list[tuple[float, float]] = []  # of the path, newest first: after which step it begins, with which it ends
    last = math.inf
    for rollback in reversed(rollbacks):
        if rollback.after_step < last:
            parts.append((rollback.after_step, last))
            last = rollback.version
    parts.append((0, last))
    return [row for row in rows if any(after < row.step <= end for after, end in parts)]


def select_ends(connection: Connection, policy: str) -> list[StepMetrics]:
    """Return the run's first and newest rows, first to last, including those that a rollback took back."""
    first = select_rows(connection, policy, oldest=FIRST)
    known = first[-1].step if first else 0
    return first + [row for row in select_rows(connection, policy, newest=RECENT) if row.step > known]


def select_history(connection: Connection, policy: str) -> list[StepMetrics]:
    """Return the rows that a daemon's warnings would look at now."""
    return on_path(select_ends(connection, policy), select_rollbacks(connection, policy))
