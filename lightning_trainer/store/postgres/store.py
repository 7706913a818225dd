"""PostgresStore: the store on a server, which several daemons may share.

Invariant: one transaction at a time writes to a store, whichever daemon's it is (an advisory lock, taken first), so
spans are numbered in the order of their commits and a reader that goes on behind a number misses none. A daemon that
falls silent with the lock in its hand loses both after some seconds. Readers see a snapshot and wait for nobody.
"""

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.store.postgres.connection import PostgresConnection
from lightning_trainer.store.postgres.failures import shown
from lightning_trainer.store.postgres.schema import migrate
from lightning_trainer.store.postgres.size import PostgresSize
from lightning_trainer.store.readers import ReaderPool
from lightning_trainer.store.retention.retention import Retention
from lightning_trainer.store.store import Store
from lightning_trainer.store.writer import GroupCommitWriter


class PostgresStore(Store):
    """Any number of daemons may have it open."""

    def __init__(self, url: str, retention: StoreConfig | None = None) -> None:
        """
        Args:
            url: ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE``; what it leaves out libpq finds as ever
                (``PGPASSWORD``, ``~/.pgpass``).
            retention: the limits that it is kept within; the defaults' unless given.
        """
        size = PostgresSize()
        super().__init__(shown(url), Retention(shown(url), retention or StoreConfig(), size.measure, most_log=0))
        self.url = url

    def _open(self) -> tuple[GroupCommitWriter, ReaderPool]:
        connection = PostgresConnection(self.url, writes=True)
        try:
            migrate(connection)
            self.retention.size = self.retention.measure(connection)
        except BaseException:
            connection.close()
            raise
        writer = GroupCommitWriter(connection, after_commit=self.retention.after_commit)
        return writer, ReaderPool(lambda: PostgresConnection(self.url))

    def _release(self) -> None:
        """Nothing is held beside the connections."""
