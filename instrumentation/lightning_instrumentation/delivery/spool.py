"""A file of spans that wait for the daemon: SQLite in WAL mode, one process writes it, ``kill -9`` loses none of it.

Each row is a serialised ``ExportTraceServiceRequest`` with one span, so the body of a POST is rows laid end to end
(repeated protobuf fields concatenate). Files lie in ``{spool_dir}/{endpoint}/{pid}-{random}.sqlite``; one whose owner
has died is an orphan, which any process with the same endpoint, or the daemon itself, may take over and empty.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lightning_instrumentation.delivery.ownership import Ownership
from lightning_instrumentation.failures import failures
from lightning_instrumentation.hosts import canonical_host
from lightning_instrumentation.settings import default_spool_dir

__all__ = ["Spool", "SpoolRow", "default_spool_dir", "endpoint_folder", "orphaned_spools"]

_MOST_BYTES = 4 << 20
_CHECKPOINT_BYTES = 4 << 20
_SCHEMA = """
CREATE TABLE IF NOT EXISTS spans (row_id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rejected (row_id INTEGER PRIMARY KEY, body BLOB NOT NULL, reason TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class SpoolRow:
    row_id: int
    body: bytes
    """A serialised ``ExportTraceServiceRequest`` with one span."""


class Spool:
    """Thread-safe. Made by ``create``, ``in_memory`` or ``take_over``; as a context manager it closes at the end."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None, ownership: Ownership | None) -> None:
        self.path = path
        """None for a spool in memory."""
        self._connection = connection
        self._ownership = ownership
        self._lock = threading.RLock()
        self._since_checkpoint = 0
        self._done: set[int] = set()
        """Rows that were accepted and are still in the file: where the disk is full, deleting needs room, too."""
        self._stuck: set[int] = set()
        """Rows that could not be put aside."""
        connection.executescript(_SCHEMA)
        self.rows, self.bytes = connection.execute(
            "SELECT count(*), coalesce(sum(length(body)), 0) FROM spans"
        ).fetchone()

    @classmethod
    def create(cls, folder: Path) -> Spool:
        """Raises OSError or sqlite3.Error: the folder cannot be written."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            path = folder / f"{os.getpid()}-{os.urandom(6).hex()}.sqlite"
            ownership = Ownership.take(_lock_path(path))
            if ownership is not None:
                break
        try:
            return cls(_connect(path), path, ownership)
        except BaseException:
            ownership.release(delete=True)
            raise

    @classmethod
    def in_memory(cls) -> Spool:
        return cls(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False), None, None)

    @classmethod
    def take_over(cls, path: Path) -> Spool | None:
        """Return the spool whose owner has died, or None where it lives, is empty or cannot be read."""
        ownership = Ownership.take(_lock_path(path))
        if ownership is None:
            return None
        try:
            if path.exists():
                return cls(_connect(path), path, ownership)
        except sqlite3.OperationalError as error:
            failures.note("spool-busy", f"the spool {path} cannot be opened now; it is tried again later", error=error)
            ownership.release()
            return None
        except sqlite3.DatabaseError as error:
            failures.note("spool-unreadable", f"the spool {path} cannot be read and is set aside", error=error)
            os.replace(path, path.with_suffix(".unreadable"))
        ownership.release(delete=True)
        return None

    def append(self, body: bytes) -> None:
        """Raises sqlite3.Error: it could not be written."""
        with self._lock:
            self._connection.execute("INSERT INTO spans (body) VALUES (?)", (body,))
            self.rows += 1
            self.bytes += len(body)
            self._since_checkpoint += len(body)

    def checkpoint(self) -> None:
        """Move what the log has gathered into the file, when that is much.

        The caller is a thread that has time: this waits for the disk, which no writer ever does.
        """
        if self.path is None or self._since_checkpoint < _CHECKPOINT_BYTES:
            return
        self._since_checkpoint = 0
        # A connection of its own, so that spans can be written meanwhile.
        with closing(_connect(self.path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def read(self, limit: int, most_bytes: int = _MOST_BYTES) -> list[SpoolRow]:
        """Return the oldest rows, at least one where there is one."""
        rows: list[SpoolRow] = []
        size = 0
        with self._lock:
            for row_id, body in self._connection.execute(
                "SELECT row_id, body FROM spans WHERE row_id NOT IN (SELECT value FROM json_each(?)) "
                "ORDER BY row_id LIMIT ?",
                (json.dumps([*self._done, *self._stuck]), limit),
            ):
                size += len(body)
                if rows and size > most_bytes:
                    break
                rows.append(SpoolRow(row_id, body))
        return rows

    def delete(self, row_ids: Iterable[int]) -> None:
        """Forget rows that were accepted. Where the file cannot be written they are never read again, and go later."""
        with self._lock:
            ended = [row_id for row_id in row_ids if row_id not in self._done]
            self._count_off(ended)
            self._done.update(ended)
            self._delete_done()

    def reject(self, row: SpoolRow, reason: str) -> None:
        """Put a row aside that will never be accepted; where the file cannot be written, the next process does it."""
        with self._lock:
            self._count_off([row.row_id])
            self._stuck.add(row.row_id)
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.execute("INSERT INTO rejected (body, reason) VALUES (?, ?)", (row.body, reason))
                self._connection.execute("DELETE FROM spans WHERE row_id = ?", (row.row_id,))
                self._connection.execute("COMMIT")
                self._stuck.discard(row.row_id)
            except sqlite3.Error as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                self._say_not_written(error)

    def _count_off(self, row_ids: Sequence[int]) -> None:
        """They wait no longer, whether or not they are still in the file."""
        count, size = self._connection.execute(
            "SELECT count(*), coalesce(sum(length(body)), 0) FROM spans "
            "WHERE row_id IN (SELECT value FROM json_each(?))",
            (json.dumps(row_ids),),
        ).fetchone()
        self.rows -= count
        self.bytes -= size

    def _delete_done(self) -> None:
        try:
            self._connection.execute(
                "DELETE FROM spans WHERE row_id IN (SELECT value FROM json_each(?))", (json.dumps(list(self._done)),)
            )
        except sqlite3.Error as error:
            self._say_not_written(error)
        else:
            self._done.clear()

    def _say_not_written(self, error: sqlite3.Error) -> None:
        failures.note(
            "spool-not-written",
            f"the spool {self.path} cannot be written, so spans that are delivered stay in it; the next process may "
            "deliver them once more, which changes nothing",
            error=error,
        )

    def rejected(self) -> Sequence[tuple[bytes, str]]:
        with self._lock:
            return self._connection.execute("SELECT body, reason FROM rejected ORDER BY row_id").fetchall()

    def close(self) -> None:
        """Let go of it; a file in which nothing is left is deleted."""
        with self._lock:
            if self.path is None or self._ownership is None:
                self._connection.close()
                return
            if self._done:
                self._delete_done()
            kept = self._connection.execute("SELECT (SELECT count(*) FROM spans) + (SELECT count(*) FROM rejected)")
            empty = kept.fetchone()[0] == 0
            self._connection.close()
            if empty:
                for suffix in ("", "-wal", "-shm"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            self._ownership.release(delete=empty)
            self._ownership = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def hold_still(self) -> None:
        """Before a fork: no thread is inside SQLite when the process is copied."""
        self._lock.acquire()

    def go_on(self) -> None:
        self._lock.release()

    def leave_to_parent(self) -> None:
        """In a forked child. A connection must be neither used nor closed there, so it is never garbage collected.

        Source: https://www.sqlite.org/howtocorrupt.html, section 2.6.
        """
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        if self._ownership is not None:
            self._ownership.forget()


def endpoint_folder(spool_dir: Path, endpoint: str) -> Path:
    """Return the folder of spans that wait for one daemon; all names of the loopback interface are the same daemon."""
    parts = urlsplit(endpoint)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    place = f"{canonical_host(parts.hostname or '')}:{port}{parts.path.rstrip('/')}"
    return Path(spool_dir) / hashlib.sha256(place.encode()).hexdigest()[:16]


def orphaned_spools(spool_dir: Path, endpoint: str, *, limit: int | None = None) -> list[Spool]:
    """Take over the spools of dead processes for this endpoint; the caller empties and closes each.

    Spools with nothing but rejected rows are left alone.
    """
    folder = endpoint_folder(spool_dir, endpoint)
    taken: list[Spool] = []
    for path in sorted(folder.glob("*.sqlite")) if folder.is_dir() else ():
        if limit is not None and len(taken) >= limit:
            break
        spool = Spool.take_over(path)
        if spool is None:
            continue
        if spool.rows:
            taken.append(spool)
        else:
            spool.close()
    return taken


def folder_bytes(folder: Path, *, but: Path | None = None) -> int:
    """Size of all the files in it, but for those of one spool: a file that was emptied has room and keeps its size."""
    size = 0
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if but is not None and entry.name.startswith(but.stem):
            continue
        try:
            size += entry.stat().st_size
        except FileNotFoundError:
            continue
    return size


def _lock_path(path: Path) -> Path:
    return path.with_suffix(".lock")


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # messages are private to the user
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection
