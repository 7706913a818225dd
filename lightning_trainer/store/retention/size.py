"""The size of the store: pages in use, free pages, and the log next to the file."""

from dataclasses import dataclass
from pathlib import Path

from lightning_trainer.store.connection import Connection


@dataclass(frozen=True, slots=True)
class StoreSize:
    """In bytes."""

    file: int
    free: int
    """Free space in the file, which the next spans fill."""
    log: int
    """The write-ahead log."""

    @property
    def used(self) -> int:
        return self.file - self.free

    @property
    def total(self) -> int:
        return self.file + self.log


def measure(connection: Connection, path: Path) -> StoreSize:
    """Query the database; takes microseconds."""
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    try:
        log = path.with_name(path.name + "-wal").stat().st_size
    except OSError:
        log = 0
    return StoreSize(file=pages * page_bytes, free=free * page_bytes, log=log)


def give_back(connection: Connection, pages: int) -> None:
    """Return up to this many free pages at the end of the file to the file system; does nothing if the file was created
    without ``auto_vacuum`` (``lightning-trainer store compact`` changes that)."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    for _ in range(min(pages, free)):
        # One at a time: the statement returns rows without columns, and Python's module fetches only the first of
        # those.
        connection.execute("PRAGMA incremental_vacuum(1)")
