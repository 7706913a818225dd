"""Leases for training a policy ("turns"): one daemon at a time holds one, for some seconds from its last message (by
the server's clock).

Invariant: the fencing token increases whenever the lease changes hands, and a write that is reserved for the holder is
refused with an older token, in the transaction of the write itself. So a daemon that was cut off or stopped, and wakes
up after its turn, commits no step and publishes nothing, however long it believes that it holds the turn.
"""

from lightning_trainer.errors import TurnLostError
from lightning_trainer.store.connection import Connection

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000000)::BIGINT"


def take(connection: Connection, policy: str, holder: str, lasts_s: float) -> tuple[int | None, str]:
    """Take a free turn; return its token and the holder, or None and the current holder."""
    row = connection.execute(
        f"SELECT holder, token, until_ns > {NOW} FROM leases WHERE policy = ?", (policy,)
    ).fetchone()
    if row is not None and row[2]:
        return None, row[0]
    token = 1 if row is None else row[1] + 1
    connection.execute(
        f"""INSERT INTO leases(policy, holder, token, until_ns) VALUES (?, ?, ?, {NOW} + ?) ON CONFLICT(policy)
            DO UPDATE SET holder = excluded.holder, token = excluded.token, until_ns = excluded.until_ns""",
        (policy, holder, token, int(lasts_s * 1e9)),
    )
    return token, holder


def renew(connection: Connection, policy: str, token: int, lasts_s: float) -> bool:
    """Extend a turn, counted from now; return False if another daemon has taken it."""
    found = connection.execute(
        f"UPDATE leases SET until_ns = {NOW} + ? WHERE policy = ? AND token = ?", (int(lasts_s * 1e9), policy, token)
    )
    return found.rowcount == 1


def give_up(connection: Connection, policy: str, token: int) -> None:
    """End a turn, so that the next daemon need not wait; does nothing if another daemon has taken it."""
    connection.execute("UPDATE leases SET until_ns = 0 WHERE policy = ? AND token = ?", (policy, token))


def count_dropped_step(connection: Connection, policy: str) -> None:
    """Count a step taken out of training, so that the daemon that holds the turn notices."""
    connection.execute("UPDATE leases SET dropped_steps = dropped_steps + 1 WHERE policy = ?", (policy,))


def dropped_steps(connection: Connection, policy: str) -> int:
    """Return how many steps were taken out since the policy was first trained."""
    row = connection.execute("SELECT dropped_steps FROM leases WHERE policy = ?", (policy,)).fetchone()
    return 0 if row is None else row[0]


def check(connection: Connection, policy: str, token: int | None) -> None:
    """Allow a write that is reserved for the holder of the turn; without a token, only while no daemon holds the turn.

    Raises:
        TurnLostError: another daemon holds the turn, or has taken it since the token was issued.
    """
    row = connection.execute(
        f"SELECT holder, token, until_ns > {NOW} FROM leases WHERE policy = ?", (policy,)
    ).fetchone()
    if row is None or row[1] == token or (token is None and not row[2]):
        return
    if token is None:
        raise TurnLostError(f"policy {policy!r} is trained by the daemon {row[0]}: ask that one, or stop it")
    raise TurnLostError(
        f"policy {policy!r} is trained by the daemon {row[0]} now: this one was silent for too long, and what it was "
        "about to write is refused"
    )
