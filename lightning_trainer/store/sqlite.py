"""SqliteStore: the embedded store of one daemon, in one file.

It uses WAL with ``synchronous=FULL``: every commit syncs the log (fsync).
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.retention.retention import Retention, give_back, measure
from lightning_trainer.store.scan import ReaderPool, is_damage
from lightning_trainer.store.schema import migrate
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables.spans import insert
from lightning_trainer.store.writer import GroupCommitWriter
from lightning_trainer.types import Span

_ADVICE_ON_DAMAGE = "; `lightning-trainer store check` says what is damaged, `store repair` keeps everything else"

_BUSY_S = 30
Result = TypeVar("Result")


class SqliteStore(Store):
    """A store for one daemon only, which a lock file next to it enforces."""

    def __init__(self, path: Path | str, retention: StoreConfig | None = None) -> None:
        """``retention``: the limits of the store; by default those of the settings."""
        self.path = Path(path)
        super().__init__(
            str(path),
            Retention(str(path), retention or StoreConfig(), partial(measure, path=self.path), give_back=give_back),
        )
        self._lock: FileLock | None = None
        self._erased_in_log = False
        """Whether the log may still hold data that was erased."""

    def _open(self) -> tuple[GroupCommitWriter, ReaderPool]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.path.with_name(self.path.name + ".lock"), f"the store {self.path}")
        except OSError as error:
            raise StoreError(f"the store {self.path} cannot be created: {error.strerror}") from error
        try:
            connection = self._connect()
            connection.execute("PRAGMA page_size=8192")  # for a new file: a call of 640 token ids fits in one page
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # for a new file: free pages can be returned
            connection.execute("PRAGMA journal_mode=WAL")
            # Pages that every commit touches (index pages) are copied into the file once per 32 MiB of log.
            log_bytes = self.retention.log_bytes
            connection.execute(f"PRAGMA wal_autocheckpoint={min(4096, log_bytes // (4 * 8192))}")
            connection.execute(f"PRAGMA journal_size_limit={log_bytes}")
            connection.execute("PRAGMA cache_size=-8192")  # KiB: a commit of a thousand spans fits
            _overwrite(connection, "FAST")
            migrate(connection, where=str(self.path))
        except sqlite3.Error as error:
            self._release()
            advice = _ADVICE_ON_DAMAGE if is_damage(error) else ""
            raise StoreError(f"the store {self.path} cannot be opened: {error}{advice}") from error
        except BaseException:
            self._release()
            raise
        self.retention.size = measure(connection, self.path)
        writer = GroupCommitWriter(connection, after_commit=self._after_commit)
        return writer, ReaderPool(self._connect_reader)

    async def erase(self, operation: Callable[[Connection], Result]) -> Result:
        """Like ``write``, but what the operation deletes is overwritten in the file, and is removed from the log after
        the commit or, if a reader is in the way, after a later commit."""

        def overwriting(connection: Connection) -> Result:
            _overwrite(connection, "ON")
            try:
                return operation(connection)
            finally:
                _overwrite(connection, "FAST")
                self._erased_in_log = True

        return await self.write(overwriting)

    def _after_commit(self, connection: Connection) -> None:
        self.retention.after_commit(connection)
        if self._erased_in_log:
            connection.execute("PRAGMA busy_timeout=0")  # with a reader in the way, it is tried after the next commit
            try:
                (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.execute(f"PRAGMA busy_timeout={_BUSY_S * 1000}")
            self._erased_in_log = bool(busy)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    def _connect_reader(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only=ON")
        return connection


def _overwrite(connection: Connection, mode: str) -> None:
    """Have deleted content overwritten with zeros: with ``FAST`` on pages that are written anyway, with ``ON`` also on
    pages that become free, at the price of writing them."""
    connection.execute(f"PRAGMA secure_delete={mode}").fetchall()


class FileLock:
    """An advisory ``flock`` on a file, held from construction until :meth:`release`: keeps a store to one daemon.

    The kernel releases the lock however the process ends.

    Args:
        path: the file to lock.
        what: what the lock protects, for the error.

    Raises:
        StoreError: another process holds it; the message names its process id.
    """

    def __init__(self, path: Path, what: str) -> None:
        import fcntl  # missing on Windows, where files of spans, and copies of a store, can be read nevertheless

        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreError(
                f"{what} is in use by another daemon (process {holder}): stop it, or choose another state_dir"
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, str(os.getpid()).encode())

    def release(self) -> None:
        """Release the lock."""
        # The file stays: unlinking it would let two daemons each lock a file of the same name.
        os.close(self._descriptor)


@contextmanager
def in_memory(spans: Sequence[Span]) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a store without a file that holds these spans; of several with one id, the first counts.

    Raises:
        MalformedTelemetryError: a span cannot be written as OTLP.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, where="in memory")
        insert(connection, spans)
        yield connection
