"""How large a store on PostgreSQL is: its tables and indices on the disk, and how much of that its rows take.

PostgreSQL uses the room of deleted rows again and tells nobody how much that is. What a span takes at the densest is
seen as the store fills, and so many times that is what the spans take.
"""

import time

from lightning_trainer.store.connection import Connection
from lightning_trainer.store.retention.size import StoreSize

_SHARE = 50.0
"""Times as long as asking took, until it is asked again."""
_TABLES = """SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
    WHERE relnamespace = to_regnamespace(current_schema()) AND relkind = 'r'"""


class PostgresSize:
    """Asks the server, for a small share of the time."""

    def __init__(self) -> None:
        self._ask_again_s = float("-inf")
        self._bytes = 0
        self._densest = float("inf")

    def measure(self, connection: Connection) -> StoreSize:
        held = connection.execute("SELECT value FROM totals WHERE name = 'spans'").fetchone()
        spans = held[0] if held else 0
        began = time.monotonic()
        if began >= self._ask_again_s:
            (size,) = connection.execute(_TABLES).fetchone()
            self._bytes, now = int(size), time.monotonic()
            self._ask_again_s = now + _SHARE * (now - began)
            if spans:
                self._densest = min(self._densest, self._bytes / spans)
        used = int(min(self._bytes, spans * self._densest)) if spans else 0
        return StoreSize(file=self._bytes, free=self._bytes - used, log=0)
