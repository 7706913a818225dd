"""An in-memory store for spans from files: the same tables for the same readers, with nothing on disk."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from lightning_trainer.store.schema import migrate
from lightning_trainer.store.tables.spans import insert
from lightning_trainer.types import Span


@contextmanager
def in_memory(spans: Sequence[Span]) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a store with these spans; of several with the same id, the first counts.

    Raises:
        MalformedTelemetryError: a span cannot be written as OTLP.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, where="in memory")
        insert(connection, spans)
        yield connection
