"""Which policies are paused, and why."""

import time

from lightning_trainer.store.connection import Connection


def put(connection: Connection, policy: str, reason: str) -> None:
    """Pause a policy; if it is already paused, the reason is replaced."""
    connection.execute(
        """INSERT INTO pauses VALUES (?, ?, ?)
           ON CONFLICT(policy) DO UPDATE SET reason = excluded.reason, at_ns = excluded.at_ns""",
        (policy, reason, time.time_ns()),
    )


def remove(connection: Connection, policy: str) -> bool:
    """Resume a policy; return whether it was paused."""
    return connection.execute("DELETE FROM pauses WHERE policy = ?", (policy,)).rowcount > 0


def reason_of(connection: Connection, policy: str) -> str | None:
    """Return why a policy is paused; None if it is not."""
    row = connection.execute("SELECT reason FROM pauses WHERE policy = ?", (policy,)).fetchone()
    return None if row is None else row[0]
