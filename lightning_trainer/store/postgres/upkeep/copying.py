"""Rewriting all tables: from a SQLite store into an empty PostgreSQL database, or in place to compact them.

A copy is one transaction, and is read back before it is committed.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from lightning_trainer.errors import StoreError
from lightning_trainer.store.connection import stream
from lightning_trainer.store.postgres.connection import PostgresConnection, as_postgres_keeps
from lightning_trainer.store.postgres.daemons import agree_on_id
from lightning_trainer.store.postgres.error_messages import shown
from lightning_trainer.store.postgres.schema import migrate as migrate_postgres
from lightning_trainer.store.postgres.schema import version_of
from lightning_trainer.store.postgres.store import PostgresSize
from lightning_trainer.store.schema import migrate as migrate_sqlite
from lightning_trainer.store.upkeep.compact import Compacted
from lightning_trainer.store.upkeep.files import DAEMON_ID, held

TABLES = (
    *("resources", "spans", "attempts", "arrivals", "participations", "steps", "assignments", "ledger", "versions"),
    *("rollbacks", "canaries", "policies", "pauses", "waiting", "drops", "totals", "received", "expired"),
    *("evaluations", "verdicts", "cursors", "feedback", "settled", "forgotten", "media", "media_uses"),
    *("outer_traces", "prompts"),
)
"""In dependency order: referenced tables come first."""
_NUMBERED = {"resources": "id", "spans": "seq", "rollbacks": "seq", "feedback": "seq", "media": "seq"}
_LAST = {"spans": "SELECT max(seq) FROM (SELECT max(seq) AS seq FROM spans UNION ALL SELECT max(seq) FROM received)"}
"""How to find the last number given out, if it may not be the newest row's: time marks outlive forgotten spans."""
_IN_ORDER = {**_NUMBERED, "ledger": "rowid"}


@dataclass(slots=True)
class Copied:
    """A finished copy: both stores now have equal contents."""

    store: str
    """The destination."""
    rows: dict[str, int] = field(default_factory=dict)
    """By table."""


def copy_to_postgres(store: Path, url: str, *, on_progress: Callable[[float], None] = lambda share: None) -> Copied:
    """Copy a store's file, and compare every row of the copy with it. The file itself is not changed, except that an
    older schema is migrated.

    Args:
        on_progress: called with the share of spans copied so far.

    Raises:
        StoreError: a daemon has the file, there is none, the database is not empty, or the copy differs; then the
            database stays empty.
    """
    if not store.is_file():
        raise StoreError(f"there is no store {store}: nothing was recorded here yet")
    copied = Copied(shown(url))
    with (
        held(store),
        closing(sqlite3.connect(store, isolation_level=None, timeout=30)) as source,
        closing(PostgresConnection(url, silence_s=None)) as target,
    ):
        try:
            migrate_sqlite(source, where=str(store))
            migrate_postgres(target)
            source.execute("BEGIN")
            target.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                copied.rows[table] = _copy(source, target, table, on_progress if table == "spans" else None)
            if (own := store.with_name(DAEMON_ID)).is_file():
                agree_on_id(target, own.read_text(encoding="ascii").strip())
            target.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(
                f"the store {store} cannot be read ({error}); nothing was copied: `lightning-trainer store check` looks"
            ) from error
        # Without statistics, the first queries would be planned as if the tables were empty.
        target.execute("ANALYZE")
    return copied


def _copy(
    source: sqlite3.Connection, target: PostgresConnection, table: str, on_progress: Callable[[float], None] | None
) -> int:
    (there,) = target.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").fetchone()
    if there:
        raise StoreError(
            f"the store {shown(target.url)} is not empty ({table}): nothing was copied; name a database of its own in "
            "[store] url, or one that no daemon has written to"
        )
    columns = ", ".join(row[1] for row in source.execute(f"PRAGMA table_info({table})"))
    (number,) = source.execute(f"SELECT count(*) FROM {table}").fetchone()
    order = f" ORDER BY {_IN_ORDER[table]}" if table in _IN_ORDER else ""
    read = _Sum()
    rows = read.of(as_postgres_keeps(row) for row in source.execute(f"SELECT {columns} FROM {table}{order}"))
    target.copy(table, columns, _told(rows, number, on_progress) if on_progress else rows)
    written = _Sum()
    for _ in written.of(stream(target, f"SELECT {columns} FROM {table}")):
        pass
    if written != read:
        raise StoreError(
            f"the copy of {table} is not what was copied ({written.rows:,} rows of {read.rows:,}): none of it was kept"
        )
    if table in _NUMBERED:
        column = _NUMBERED[table]
        (last,) = source.execute(_LAST.get(table, f"SELECT max({column}) FROM {table}")).fetchone()
        if last is not None:
            target.execute(f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), ?)", (last,))
    return read.rows


@dataclass(slots=True)
class _Sum:
    """Counts rows and sums their digests, independently of their order."""

    rows: int = 0
    digests: int = 0

    def of(self, rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            self.rows += 1
            digest = blake2b(repr(tuple(row)).encode(errors="surrogatepass"), digest_size=16).digest()
            self.digests = (self.digests + int.from_bytes(digest, "big")) % 2**128
            yield row


def _told(rows: Iterable[Any], number: int, on_progress: Callable[[float], None]) -> Iterator[Any]:
    for place, row in enumerate(rows, start=1):
        if place % 1000 == 0:
            on_progress(place / number)
        yield row


def compact(url: str) -> Compacted:
    """Rewrite every table (``VACUUM FULL``), one after the other; daemons wait for the one that is being rewritten.

    Raises:
        StoreError: it cannot be reached, there is no room, or a daemon blocks a table for too long.
    """
    with closing(PostgresConnection(url)) as connection:
        version_of(connection)
        before = PostgresSize().measure(connection).total
        for table in TABLES:
            connection.script(f"VACUUM (FULL, ANALYZE) {table}")
        return Compacted(before, PostgresSize().measure(connection).total)
