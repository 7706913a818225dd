"""Keeps a store within its limits: by size at every write, by age and use periodically.

A store's size is that of pages in use, free pages, and the log next to the file. The writer pays (back-pressure): after
a commit that brings the store near its limit, the writer's own thread deletes the oldest data until there is room
again, for a bounded time. So the size limit holds however fast others write.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.media import table as media
from lightning_trainer.store.retention import sweep
from lightning_trainer.store.tables import cursors, totals

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The size of a store's parts, in bytes."""

    file: int
    free: int
    """Free space in the file, which the next spans fill."""
    log: int
    """The write-ahead log."""

    @property
    def used(self) -> int:
        """Return the bytes of the file that hold something."""
        return self.file - self.free

    @property
    def total(self) -> int:
        """Return the bytes of file and log."""
        return self.file + self.log


def measure(connection: Connection, path: Path) -> StoreSize:
    """Return the size of a SQLite store; takes microseconds."""
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
        # One at a time: the statement returns rows without columns, of which Python's module fetches only the first.
        connection.execute("PRAGMA incremental_vacuum(1)")


_FULL, _ROOMY = 0.9, 0.85
"""Shares of the file's limit at which deleting begins and ends."""
_MOST_LOG = 64 * 2**20
_BUDGET_S = 0.1
"""After one commit, the writer deletes spans and batches for at most this long, and media for as long. A slice of the
sweep takes half of it."""
_LOOK_AGAIN_S = 30.0
"""Pause after a pass over everything that deleted nothing."""
_PAGES = 512
"""Free pages returned to the file system at once: 4 MiB."""
_FREE_SHARE = 0.1


@dataclass(slots=True)
class Retention:
    """The limits of one store, and the position of its sweeps."""

    store: str
    """The store's name, for display."""
    config: StoreConfig
    measure: Callable[[Any], StoreSize]
    """Measures the size of the store through a connection."""
    give_back: Callable[[Any, int], None] | None = None
    """Returns this many free pages to the file system; None if the database does that by itself."""
    most_log: int = _MOST_LOG
    """Maximum bytes of the log next to the store."""
    wanted_by: Callable[[], Collection[str]] | None = None
    """Returns the policies whose steps still take attempts. None: they are unknown, and nothing is deleted. A command
    that writes to the store of a stopped daemon does not know them, and a daemon that is starting does not yet."""
    repeatable_from: Callable[[Connection], Mapping[str, int]] = lambda _: {}
    """Given a connection, returns by policy the step of the oldest checkpoint from which training may continue: batches
    of later steps are needed after a crash, or for a rollback. 0: all batches are needed."""
    size: StoreSize = field(default_factory=lambda: StoreSize(0, 0, 0))
    """The size after the last commit."""
    _position: int = 0
    _deleted: int = 0
    """Spans that were deleted since the search for the oldest ones last started over."""
    _media_position: int = 0
    _media_deleted: int = 0
    _no_media_until_s: float = 0.0
    _nothing_until_s: float = 0.0
    _too_large: bool = False
    _by_age: int = 0

    @property
    def log_bytes(self) -> int:
        """Return the maximum size of the log."""
        limit = self.config.retention_size
        return self.most_log if limit is None else int(min(self.most_log, limit / 4))

    def after_commit(self, connection: Connection) -> None:
        """Make room if the store is nearly full. Runs in the writer's thread, outside a transaction."""
        self.size = self.measure(connection)
        if self.wanted_by is None:
            return
        self._make_room_for_media(connection)
        limit = self.config.retention_size
        if limit is None:
            return
        room = limit - self.log_bytes
        if self.size.used > _FULL * room:
            self._make_room(connection, _ROOMY * room)
        if self.give_back is not None and self.size.file > room and self.size.free:
            # The file is over its limit, and parts of it are free: it shrinks a little with each commit.
            give_back = self.give_back
            _in_transaction(connection, lambda: give_back(connection, _PAGES))
            self.size = self.measure(connection)
        too_large = self.size.used > room
        if too_large and not self._too_large:
            self._too_large = True
            _log.warning("%s", self.note())
        self._too_large = too_large

    def _make_room(self, connection: Connection, enough: float) -> None:
        give_up = time.monotonic() + _BUDGET_S
        while self.size.used > enough and self._nothing_until_s < time.monotonic() < give_up:
            _in_transaction(connection, lambda: self._oldest(connection))
            self.size = self.measure(connection)

    def _make_room_for_media(self, connection: Connection) -> None:
        limit = self.config.media_size
        if limit is None or media.held_bytes(connection) <= _FULL * limit:
            return
        give_up = time.monotonic() + _BUDGET_S
        while media.held_bytes(connection) > _ROOMY * limit and self._no_media_until_s < time.monotonic() < give_up:
            _in_transaction(connection, lambda: self._oldest_media(connection))

    def note(self) -> str | None:
        """Return a sentence if the store is larger than it should be, else None."""
        if not self._too_large:
            return None
        return (
            f"the store {self.store} holds {self.size.used / 2**20:,.0f} MiB, more than [store] retention_size allows, "
            "and what is left is wanted by steps or just came: raise it, or let the policies catch up"
        )

    def sweep(self, connection: Connection) -> bool:
        """Delete a slice of what is too old or used; return True if there may be more. Runs in its own transaction."""
        if self.wanted_by is None:
            return False
        give_up = time.monotonic() + _BUDGET_S / 2
        while time.monotonic() < give_up:
            if not (self._by_time(connection) or self._of_old_steps(connection) or self._names(connection)):
                sweep.forget_marks(connection)
                return self._shrink(connection)
        return True

    def begin_sweep(self) -> None:
        """Restart the sweep at the oldest data: data that was wanted may not be wanted any more."""
        self._by_age = 0

    def holds(self, connection: Connection) -> dict[str, Any]:
        """Return what the store holds and what was deleted, for display and JSON."""
        held = totals.select(connection)
        oldest = sweep.oldest_span_ns(connection)
        return {
            "size_bytes": self.size.total,
            "used_bytes": self.size.used,
            "log_bytes": self.size.log,
            "retention_size_bytes": self.config.retention_size,
            "oldest_span_age_s": None if oldest is None else max(0.0, (time.time_ns() - oldest) / 1e9),
            "media": held.get(media.COUNT, 0),
            "media_bytes": held.get(media.BYTES, 0),
            "media_size_bytes": self.config.media_size,
            "deleted": {
                name: held.get(f"{totals.DELETED}{name}", 0) for name in ("spans", "attempts", "batches", media.COUNT)
            },
            "note": self.note(),
        }

    def _wanted(self) -> Collection[str]:
        assert self.wanted_by is not None
        return self.wanted_by()

    def _oldest(self, connection: Connection) -> None:
        """Delete the oldest data that no step can use; batches come first, as only a rollback would need them again."""
        for policy, step in self.repeatable_from(connection).items():
            if sweep.delete_batches(connection, policy, step):
                return
        found = sweep.delete_spans(connection, self._position, 2**62, wanted_by=self._wanted(), now_ns=time.time_ns())
        self._position = found.position
        self._deleted += found.deleted
        if not found.position:  # the end was reached
            if not self._deleted:
                self._nothing_until_s = time.monotonic() + _LOOK_AGAIN_S
            self._deleted = 0

    def _oldest_media(self, connection: Connection) -> None:
        found = sweep.delete_media(connection, self._media_position, wanted_by=self._wanted(), now_ns=time.time_ns())
        self._media_position = found.position
        self._media_deleted += found.deleted
        if not found.position:  # the end was reached
            if not self._media_deleted:
                self._no_media_until_s = time.monotonic() + _LOOK_AGAIN_S
            self._media_deleted = 0

    def _by_time(self, connection: Connection) -> bool:
        if self.config.retention_time is None:
            return False
        now_ns = time.time_ns()
        before_ns = now_ns - int(self.config.retention_time * 1e9)
        for policy, step in self.repeatable_from(connection).items():
            if sweep.delete_batches(
                connection, policy, min(step, sweep.last_step_before(connection, policy, before_ns))
            ):
                return True
        until = sweep.last_before(connection, before_ns)
        found = sweep.delete_spans(connection, self._by_age, until, wanted_by=self._wanted(), now_ns=now_ns)
        self._by_age = found.position or self._by_age
        return bool(found.position)

    def _of_old_steps(self, connection: Connection) -> bool:
        kept = self.config.retention_steps
        if kept is None:
            return False
        for policy, repeatable in self.repeatable_from(connection).items():
            (newest,) = connection.execute(
                "SELECT coalesce(max(step), 0) FROM steps WHERE policy = ?", (policy,)
            ).fetchone()
            if sweep.delete_batches(connection, policy, min(newest - kept, repeatable)):
                return True
            found = sweep.delete_step_spans(
                connection,
                policy,
                cursors.position(connection, f"retention/{policy}"),
                newest - kept,
                wanted_by=self._wanted(),
                now_ns=time.time_ns(),
            )
            if found.position or found.deleted:
                cursors.move(connection, f"retention/{policy}", found.position)
                return True
        return False

    def _names(self, connection: Connection) -> bool:
        return bool(sweep.forget_names(connection, time.time_ns() - int(self.config.idempotency_window * 1e9)))

    def _shrink(self, connection: Connection) -> bool:
        """Give free pages back to the file system if there are many; return True if there may be more."""
        size = self.measure(connection)
        if self.give_back is None or size.free <= max(_FREE_SHARE * size.file, 32 * 2**20):
            return False
        self.give_back(connection, _PAGES)
        return self.measure(connection).file < size.file


def _in_transaction(connection: Connection, work: Callable[[], None]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        work()
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
