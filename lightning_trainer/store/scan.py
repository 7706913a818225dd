"""Reading alongside the writer: a few threads, each with a read-only connection, and a full pass over a store, trace by
trace.

In WAL mode, neither waits for the writer or blocks it. A pass needs no daemon, sees one snapshot, and holds one trace
at a time in memory: all of the trace, even if several processes recorded it.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from lightning_trainer.errors import DamagedStoreError, StoreError
from lightning_trainer.otlp.span_codec import decode_resource, decode_span
from lightning_trainer.store.connection import Connection, stream
from lightning_trainer.store.schema import MIGRATIONS, supply_tables
from lightning_trainer.types import AttributeValue, Span

_TRACES = """SELECT spans.trace_id, spans.body, spans.scope, spans.resource_id FROM spans
    ORDER BY spans.trace_id, spans.span_id"""
_NEWEST_TRACES = """SELECT spans.trace_id, spans.body, spans.scope, spans.resource_id FROM spans
    WHERE seq > ? ORDER BY spans.trace_id || '', spans.span_id"""


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a store's file for reading, whether or not a daemon has it open.

    Raises:
        StoreError: there is no such file, it is not a store, or a newer lightning-trainer wrote it.
    """
    if not path.is_file():
        raise StoreError(
            f"there is no store {path}: start `lightning-trainer serve`, or name the configuration of one with "
            "--config, or its folder with --state-dir (agents, explain, ui)"
        )
    try:
        with closing(_connect(path)) as connection:
            supply_tables(connection)
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise unreadable(error, f"the store {path}") from error


def _connect(path: Path) -> sqlite3.Connection:
    log = path.with_name(path.name + "-wal")
    for options in ("mode=ro", "mode=ro&immutable=1"):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{options}", uri=True, timeout=30, isolation_level=None
        )
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.OperationalError:
            connection.close()
            # In a folder that we cannot write to, SQLite cannot create the log's index. If there is no log, it needs no
            # index, and there is no writer.
            if options == "mode=ro" and not log.exists():
                continue
            raise
        if not 1 <= version <= len(MIGRATIONS):
            connection.close()
            raise StoreError(
                f"the store {path} has schema {version}, this lightning-trainer reads 1 to {len(MIGRATIONS)}: "
                "use the version of lightning-trainer that wrote it, or a newer one"
            )
        return connection
    raise StoreError(f"the store {path} cannot be opened for reading")


def named(connection: Connection, name: str, *, newest: int | None = None) -> Iterator[Span]:
    """Yield every span of one name, in order of arrival; with ``newest``, only those among this many newest spans."""
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM spans").fetchone()
    rows = stream(
        connection,
        "SELECT spans.body, scope, resources.body FROM spans JOIN resources ON resources.id = resource_id "
        "WHERE name = ? AND seq > ? ORDER BY seq",
        (name, 0 if newest is None else last - newest),
    )
    for body, scope, resource in rows:
        yield decode_span(body, scope=scope, resource=decode_resource(resource))


def traces(
    connection: Connection, slim: Callable[[Span], Span] = lambda span: span, *, newest: int | None = None
) -> Iterator[list[Span]]:
    """Yield every trace's spans, one trace at a time, in an order that depends only on the spans.

    Args:
        slim: removes from a span what the caller does not need, before the next span is read.
        newest: read only this many of the newest spans.
    """
    resources: dict[int, dict[str, AttributeValue]] = {}
    (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM spans").fetchone()
    rows = stream(connection, _TRACES) if newest is None else stream(connection, _NEWEST_TRACES, (last - newest,))
    for _, trace in groupby(rows, key=lambda row: row[0]):
        spans = []
        for _, body, scope, resource_id in trace:
            if resource_id not in resources:
                found = connection.execute("SELECT body FROM resources WHERE id = ?", (resource_id,)).fetchone()
                resources[resource_id] = {} if found is None else decode_resource(found[0])
            spans.append(slim(decode_span(body, scope=scope, resource=resources[resource_id])))
        yield spans


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
            StoreError: the store is closed, or its database cannot be read.
        """
        try:
            future = self._executor.submit(self._query, query)
        except RuntimeError as error:
            raise StoreError("the store is closed; nothing more can be read from it") from error
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Wait for the running queries, and close the connections."""
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
    """Return an error that says why the store could not be read and, if its file is damaged, what to do."""
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
