"""How large a store on PostgreSQL is: its tables and indices on the disk, and how much of that its rows take.

PostgreSQL uses the room of deleted rows again and tells nobody how much that is. What a span takes at the densest is
seen as the store fills, and so many times that is what the spans take.
"""

import time

from lightning_trainer.store.connection import Connection
from lightning_trainer.store.retention.size import StoreSize

_ASK_EVERY_S = 2.0
_TABLES = """SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
    WHERE relnamespace = to_regnamespace(current_schema()) AND relkind = 'r'"""


class PostgresSize:
    """Asks the server now and then."""

    def __init__(self) -> None:
        self._asked_s = float("-inf")
        self._bytes = 0
        self._densest = float("inf")

    def measure(self, connection: Connection) -> StoreSize:
        if time.monotonic() - self._asked_s >= _ASK_EVERY_S:
            (size,) = connection.execute(_TABLES).fetchone()
            self._bytes, self._asked_s = int(size), time.monotonic()
        held = connection.execute("SELECT value FROM totals WHERE name = 'spans'").fetchone()
        spans = held[0] if held else 0
        if spans:
            self._densest = min(self._densest, self._bytes / spans)
        used = min(self._bytes, int(spans * self._densest)) if spans else 0
        return StoreSize(file=self._bytes, free=self._bytes - used, log=0)
