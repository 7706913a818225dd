"""Compaction: shrinks a store's file to the size of its contents, and lets it return free pages from then on."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lightning_trainer.errors import StoreError
from lightning_trainer.store.retention.retention import measure
from lightning_trainer.store.schema import migrate
from lightning_trainer.store.upkeep.files import STORE, enough_room, held


@dataclass(frozen=True, slots=True)
class Compacted:
    """The size of a store before and after compaction, in bytes."""

    before: int
    after: int


def compact(state_dir: Path) -> Compacted:
    """Rewrite the database in place; it needs as much free disk space as its contents, and no running daemon.

    Raises:
        StoreError: a daemon has the store, there is no room, or it is damaged; then its contents are unchanged.
    """
    store = state_dir / STORE
    if not store.is_file():
        raise StoreError(f"there is no store {store}")
    with held(store):
        try:
            with closing(sqlite3.connect(store, isolation_level=None, timeout=30)) as connection:
                migrate(connection, where=str(store))
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                before = measure(connection, store)
                # VACUUM writes a whole copy, and then writes the copy into the log.
                enough_room(state_dir, 2 * before.used, "compacting")
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                after = measure(connection, store)
        except sqlite3.Error as error:
            raise StoreError(
                f"the store {store} cannot be compacted: {error}; `lightning-trainer store check` looks"
            ) from error
    return Compacted(before.total, after.total)
