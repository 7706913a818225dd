"""Readers: a few threads, each with a read-only connection; in WAL mode they never wait for the writer."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lightning_trainer.errors import DamagedStoreError, StoreError
from lightning_trainer.store.connection import Connection

Result = TypeVar("Result")


class ReaderPool:
    """Runs queries off the event loop; every query sees one consistent snapshot."""

    def __init__(self, connect: Callable[[], Connection], *, threads: int = 4) -> None:
        self._connect = connect
        self._local = threading.local()
        self._opened: list[Connection] = []
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="store-reader", initializer=self._open)

    async def run(self, query: Callable[[Connection], Result]) -> Result:
        """Run a query in a snapshot.

        Raises:
            StoreError: the store is closed, or its database cannot read it.
        """
        try:
            future = self._executor.submit(self._query, query)
        except RuntimeError as error:
            raise StoreError("the store is closed; nothing more can be read from it") from error
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._executor.shutdown(wait=True)
        for connection in self._opened:
            connection.close()

    def _open(self) -> None:
        self._local.connection = self._connect()
        self._opened.append(self._local.connection)

    def _query(self, query: Callable[[Connection], Result]) -> Result:
        connection: Connection = self._local.connection
        try:
            connection.execute("BEGIN")
            try:
                return query(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise unreadable(error) from error


def unreadable(error: sqlite3.Error, what: str = "the store") -> StoreError:
    """Return an error that says why the store could not be read and, if its file is damaged, what helps."""
    if is_damage(error):
        return DamagedStoreError(
            f"{what} cannot be read: {error}; a part of its file is damaged: `lightning-trainer store check` says "
            "what, `store repair` keeps everything else"
        )
    return StoreError(f"{what} cannot be read: {error}")


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error means that the file is damaged."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
