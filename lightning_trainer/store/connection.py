"""The interface of the connections that the tables' queries use: sqlite3's, or that of ``postgres/connection.py``.

Queries are written once, in SQL that both databases understand, with SQLite's placeholders (``?``, ``?1``, ``:name``).
Lists are passed as JSON text and read by ``json_each``.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

ALL = 2**62
"""A LIMIT that does not limit."""
Parameters = Sequence[Any] | Mapping[str, Any]


class Cursor(Protocol):
    """The result rows of a statement."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A database connection in autocommit mode: ``BEGIN`` opens a snapshot, ``BEGIN IMMEDIATE`` an exclusive write
    transaction."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, sql: str, parameters: Any = (), /) -> Cursor: ...
    def executemany(self, sql: str, rows: Iterable[Any], /) -> Cursor: ...
    def close(self) -> None: ...


def stream(connection: Connection, sql: str, parameters: Parameters = ()) -> Iterable[Any]:
    """Run a query with possibly many rows, fetched lazily."""
    streaming = getattr(connection, "stream", connection.execute)
    return streaming(sql, parameters)


def has_table(connection: Connection, name: str) -> bool:
    """Whether a table exists; a SQLite file with an early schema, opened read-only, lacks some."""
    if not isinstance(connection, sqlite3.Connection):
        return True
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
    return found.fetchone() is not None
