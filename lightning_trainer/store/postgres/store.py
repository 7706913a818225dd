"""PostgresStore: the store on a server, which several daemons may share.

Invariant: one transaction at a time writes to a store, across all daemons (an advisory lock, taken first), so spans are
numbered in the order of their commits, and a reader that continues after a number misses none. A daemon that goes
silent while it holds the lock loses it, and its transaction, after some seconds. Readers see a snapshot and never wait.
"""

import time
from collections.abc import Callable

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.database import Result
from lightning_trainer.store.postgres import daemons, turns
from lightning_trainer.store.postgres.connection import PostgresConnection
from lightning_trainer.store.postgres.error_messages import shown
from lightning_trainer.store.postgres.schema import TABLES, migrate
from lightning_trainer.store.retention.retention import Retention, StoreSize
from lightning_trainer.store.scan import ReaderPool
from lightning_trainer.store.store import Store
from lightning_trainer.store.worklist import drops
from lightning_trainer.store.writer import GroupCommitWriter


class PostgresStore(Store):
    """A store that any number of daemons may have open."""

    shared = True

    def __init__(self, url: str, retention: StoreConfig | None = None) -> None:
        """Set the store up; ``open`` connects.

        Args:
            url: ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE``; libpq finds the missing parts as usual
                (``PGPASSWORD``, ``~/.pgpass``).
            retention: the limits of the store; by default those of the settings.
        """
        size = PostgresSize()
        super().__init__(shown(url), Retention(shown(url), retention or StoreConfig(), size.measure, most_log=0))
        self.url = url
        self._tokens: dict[str, int] = {}
        """Our newest fencing token by policy. A token is kept after its turn, so that writes that still use it are
        refused."""

    def _open(self) -> tuple[GroupCommitWriter, ReaderPool]:
        connection = PostgresConnection(self.url, silence_s=self.retention.config.turn_s)
        try:
            migrate(connection)
            self.retention.size = self.retention.measure(connection)
        except BaseException:
            connection.close()
            raise
        writer = GroupCommitWriter(connection, after_commit=self.retention.after_commit)
        return writer, ReaderPool(lambda: PostgresConnection(self.url, silence_s=None))

    def _release(self) -> None:
        """Do nothing: there are only the connections, which are closed already."""

    async def daemon_id(self, own: str) -> str:
        return await self._write(lambda connection: daemons.agree_on_id(connection, own))

    async def hold_run(self, name: str, holder: str, lasts_s: float) -> bool:
        return await self._write(lambda connection: daemons.hold_run(connection, name, holder, lasts_s))

    async def release_run(self, name: str, holder: str) -> None:
        await self._write(lambda connection: daemons.release_run(connection, name, holder))

    async def held_runs(self) -> list[str]:
        return await self._read(daemons.held_runs)

    async def take_turn(self, policy: str, holder: str) -> str | None:
        lasts_s = self.retention.config.turn_s
        token, has_it = await self._write(lambda connection: turns.take(connection, policy, holder, lasts_s))
        if token is None:
            return has_it
        self._tokens[policy] = token
        return None

    async def renew_turn(self, policy: str) -> bool:
        token, lasts_s = self._tokens.get(policy), self.retention.config.turn_s
        if token is None:
            return False
        return await self._write(lambda connection: turns.renew(connection, policy, token, lasts_s))

    async def give_up_turn(self, policy: str) -> None:
        token = self._tokens.get(policy)
        if token is not None:
            await self._write(lambda connection: turns.give_up(connection, policy, token))

    async def drop(
        self, name: str, *, reason: str, kind: drops.Kind | None = None, policy: str | None = None
    ) -> drops.Dropped:
        def drop_and_tell(connection: Connection) -> drops.Dropped:
            dropped = drops.drop(connection, name, reason=reason, kind=kind, policy=policy)
            if dropped.kind is drops.Kind.STEP:
                turns.count_dropped_step(connection, dropped.name.rpartition("@")[0])
            return dropped

        return await self._write(drop_and_tell)

    def _fenced(self, policy: str, operation: Callable[[Connection], Result]) -> Callable[[Connection], Result]:
        token = self._tokens.get(policy)

        def fenced(connection: Connection) -> Result:
            turns.check(connection, policy, token)
            return operation(connection)

        return fenced


_SHARE = 50.0
"""After measuring, wait this many times the measurement's duration before the next one."""
_HELD = "SELECT name, value FROM totals WHERE name IN (?, ?, ?)"
_KEEP = "INSERT INTO totals VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET value = excluded.value"
_SIZE = f"""SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
    WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND relkind = 'r'
    AND relname IN ({", ".join(f"'{table}'" for table in TABLES)})"""


_PER_SPAN, _MEASURED = "size/bytes_per_span", "size/measured_bytes"
"""Names of totals: the smallest size per span, and the size that the tables had when it was measured."""
_GROWN = 1.25


class PostgresSize:
    """Disk size of tables and indexes, and the part of it in use. Measuring takes a small share of the time, and is
    repeated whenever the number of spans has grown by a quarter.

    PostgreSQL reuses the space of deleted rows but does not report how much there is. Therefore the smallest size per
    span is observed as the store fills, and kept in the store: otherwise, a daemon that starts on a full store would
    take all of the space for used. This size times the number of spans is the part in use, even between two
    measurements. If the tables have grown by a quarter since it was observed, they hold larger spans, and the present
    size per span replaces it.
    """

    def __init__(self) -> None:
        self._ask_again_s = float("-inf")
        self._bytes = 0
        self._spans = 0

    def measure(self, connection: Connection) -> StoreSize:
        """Return the sizes in bytes; between two measurements, only the estimate of the part in use is updated."""
        held = dict(connection.execute(_HELD, ("spans", _PER_SPAN, _MEASURED)).fetchall())
        spans = held.get("spans", 0)
        began = time.monotonic()
        if began >= self._ask_again_s or spans > _GROWN * self._spans:
            (size,) = connection.execute(_SIZE).fetchone()
            self._bytes, self._spans, now = int(size), spans, time.monotonic()
            self._ask_again_s = now + _SHARE * (now - began)
            if spans:
                self._observe(connection, held, self._bytes // spans)
        used = spans * held.get(_PER_SPAN, 0)
        file = max(self._bytes, used)
        return StoreSize(file=file, free=file - used, log=0)

    def _observe(self, connection: Connection, held: dict[str, int], per_span: int) -> None:
        if per_span < held.get(_PER_SPAN, per_span + 1) or self._bytes > _GROWN * held.get(_MEASURED, 0):
            held |= {_PER_SPAN: per_span, _MEASURED: self._bytes}
            connection.executemany(_KEEP, [(_PER_SPAN, per_span), (_MEASURED, self._bytes)])
