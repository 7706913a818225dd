"""A full pass over a store, trace by trace, without its daemon: read-only, also while a daemon writes.

Memory holds one trace at a time, complete even if several processes recorded it. The reader sees one snapshot; in WAL
mode it neither waits for the writer nor blocks it.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path

from lightning_trainer.errors import StoreError
from lightning_trainer.otlp.span_codec import decode_resource, decode_span
from lightning_trainer.store.connection import Connection, stream
from lightning_trainer.store.readers import unreadable
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
            f"there is no store {path}: start `lightning-trainer serve`, or name the folder of one with --state-dir"
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
            # In a folder that we cannot write to, SQLite cannot create a log's index; without a log it needs none, and
            # there is no writer.
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
    """Yield every span of one name, in order of arrival; of the ``newest`` spans if given."""
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
        slim: strips a span of what the caller does not need, before the next one is read.
        newest: only this many of the newest spans.
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
