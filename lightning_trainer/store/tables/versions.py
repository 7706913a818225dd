"""Policy versions and their state transitions, with at most one live version per policy; and rollbacks."""

from dataclasses import astuple, fields, replace

from lightning_trainer.errors import StoreError
from lightning_trainer.store.connection import ALL, Connection
from lightning_trainer.store.records import Rollback
from lightning_trainer.types import PolicyVersion, VersionState

ALLOWED: dict[VersionState, frozenset[VersionState]] = {
    VersionState.TRAINED: frozenset({VersionState.TRAINED, VersionState.LIVE, VersionState.REFUSED}),
    VersionState.LIVE: frozenset({VersionState.LIVE, VersionState.RETIRED, VersionState.REFUSED}),
    # After a restart the newest version is offered to the engine again: it may become live again, or fail its probe.
    VersionState.RETIRED: frozenset({VersionState.RETIRED, VersionState.LIVE, VersionState.REFUSED}),
    VersionState.REFUSED: frozenset({VersionState.REFUSED, VersionState.LIVE}),
}
_FIELDS = tuple(field.name for field in fields(PolicyVersion))
_COLUMNS = ", ".join(_FIELDS)


def put(connection: Connection, version: PolicyVersion) -> None:
    """Insert or update a version; one that becomes live retires the previous live one, in the same transaction.

    ``trained`` for a version in a later state, which is published again after a restart, changes nothing: only the
    outcome of that publication does. The creation time of the first insert is kept.

    Raises:
        StoreError: its recorded state does not allow the change.
    """
    found = connection.execute(
        "SELECT state, created_ns FROM versions WHERE policy = ? AND version = ?", (version.policy, version.version)
    ).fetchone()
    if found is not None:
        recorded = VersionState(found[0])
        version = replace(version, created_ns=found[1])
        if version.state is VersionState.TRAINED and recorded is not VersionState.TRAINED:
            return
        if version.state not in ALLOWED[recorded]:
            raise StoreError(f"{version.name} is {recorded}; it cannot become {version.state}")
    if version.state is VersionState.LIVE:
        connection.execute(
            "UPDATE versions SET state = 'retired' WHERE policy = ? AND state = 'live' AND version != ?",
            (version.policy, version.version),
        )
    connection.execute(
        f"""INSERT INTO versions({_COLUMNS}) VALUES ({", ".join("?" * len(_FIELDS))}) ON CONFLICT(policy, version)
            DO UPDATE SET {", ".join(f"{field} = excluded.{field}" for field in _FIELDS[2:])}""",
        astuple(version),
    )


def select(
    connection: Connection,
    policy: str,
    *,
    before: int | None = None,
    newest: int | None = None,
    oldest: int | None = None,
) -> list[PolicyVersion]:
    """Return the policy's versions in ascending order: those before version ``before`` and, of these, the given number
    of the newest or oldest; by default all."""
    limit = newest if newest is not None else ALL if oldest is None else oldest
    order = "ASC" if newest is None else "DESC"
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM versions WHERE policy = ? AND version < ? ORDER BY version {order} LIMIT ?",
        (policy, 2**62 if before is None else before, limit),
    )
    return sorted(map(_read, rows), key=lambda version: version.version)


def select_one(connection: Connection, policy: str, version: int) -> PolicyVersion | None:
    """Return one version; None if there is no version of that number."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM versions WHERE policy = ? AND version = ?", (policy, version)
    ).fetchone()
    return None if row is None else _read(row)


def select_served(connection: Connection, policy: str, newest: int) -> list[int]:
    """Return the newest versions that are or were live, ascending."""
    rows = connection.execute(
        """SELECT version FROM versions WHERE policy = ? AND state IN ('live', 'retired')
           ORDER BY version DESC LIMIT ?""",
        (policy, newest),
    )
    return sorted(version for (version,) in rows)


def count_of_policies(connection: Connection) -> dict[str, int]:
    """Return how many versions each policy has, by its name."""
    return dict(connection.execute("SELECT policy, count(*) FROM versions GROUP BY policy ORDER BY policy").fetchall())


def select_live(connection: Connection, policy: str) -> PolicyVersion | None:
    """Return the live version; None if there is none."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM versions WHERE policy = ? AND state = 'live'", (policy,)
    ).fetchone()
    return None if row is None else _read(row)


def put_rollback(connection: Connection, policy: str, version: int, at_ns: int) -> Rollback:
    """Record that, after the newest recorded step, the weights go back to those of ``version``."""
    (after_step,) = connection.execute(
        "SELECT coalesce(max(step), 0) FROM steps WHERE policy = ?", (policy,)
    ).fetchone()
    connection.execute(
        "INSERT INTO rollbacks(policy, after_step, version, at_ns) VALUES (?, ?, ?, ?)",
        (policy, after_step, version, at_ns),
    )
    return Rollback(after_step, version, at_ns)


def select_rollbacks(connection: Connection, policy: str) -> list[Rollback]:
    """Return the policy's rollbacks in chronological order."""
    rows = connection.execute(
        "SELECT after_step, version, at_ns FROM rollbacks WHERE policy = ? ORDER BY seq", (policy,)
    )
    return [Rollback(*row) for row in rows]


def _read(row: tuple) -> PolicyVersion:
    version = PolicyVersion(*row)
    return replace(version, state=VersionState(version.state))
