"""Making a store on PostgreSQL as small as what it holds."""

from contextlib import closing

from lightning_trainer.store.postgres.connection import PostgresConnection
from lightning_trainer.store.postgres.schema import version_of
from lightning_trainer.store.postgres.size import PostgresSize
from lightning_trainer.store.postgres.upkeep.copying import TABLES
from lightning_trainer.store.upkeep.compact import Compacted


def compact(url: str) -> Compacted:
    """Write every table anew (``VACUUM FULL``), one after the other; daemons wait for the table that it is at.

    Raises:
        StoreError: it cannot be reached, there is no room, or a daemon is in a table for too long.
    """
    with closing(PostgresConnection(url)) as connection:
        version_of(connection)
        before = PostgresSize().measure(connection).total
        for table in TABLES:
            connection.script(f"VACUUM (FULL, ANALYZE) {table}")
        return Compacted(before, PostgresSize().measure(connection).total)
