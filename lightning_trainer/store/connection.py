"""What the tables' queries ask of a connection; sqlite3's is one, and ``postgres/connection.py`` has the other.

Queries are written once, in SQL that both databases know, with SQLite's placeholders (``?``, ``?1``, ``:name``). Lists
come as JSON text and are read by ``json_each``.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

ALL = 2**62
"""As a LIMIT: no limit."""
Parameters = Sequence[Any] | Mapping[str, Any]


class Cursor(Protocol):
    """The rows that a statement found."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """In autocommit mode: ``BEGIN`` opens a snapshot, ``BEGIN IMMEDIATE`` a transaction that alone may write."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, sql: str, parameters: Any = (), /) -> Cursor: ...
    def executemany(self, sql: str, rows: Iterable[Any], /) -> Cursor: ...
    def close(self) -> None: ...


def stream(connection: Connection, sql: str, parameters: Parameters = ()) -> Iterable[Any]:
    """Run a query whose rows may be many: they are fetched as they are asked for."""
    streaming = getattr(connection, "stream", connection.execute)
    return streaming(sql, parameters)


def has_table(connection: Connection, name: str) -> bool:
    """Whether there is a table; a SQLite file of an early schema that is open for reading only lacks some."""
    if not isinstance(connection, sqlite3.Connection):
        return True
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
    return found.fetchone() is not None
