"""A store read from beginning to end, trace by trace, without its daemon: read-only, and beside a daemon that writes.

Memory holds one trace at a time. A trace that was cut into several processes' spans comes whole; the reader sees one
snapshot, and in WAL mode it neither waits for the writer nor holds it up.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path

from lightning_trainer.errors import StoreError
from lightning_trainer.otlp.span_codec import decode_resource, decode_span
from lightning_trainer.store.schema import MIGRATIONS
from lightning_trainer.types import Span

_TRACES = """SELECT spans.trace_id, spans.body, spans.scope, spans.resource_id FROM spans
    ORDER BY spans.trace_id, spans.span_id"""


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
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise StoreError(f"the store {path} cannot be read: {error}") from error


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
            # In a folder that is not ours to write to, SQLite cannot make the index of a log; without a log it is not
            # needed, and nobody is writing.
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


def named(connection: sqlite3.Connection, name: str) -> Iterator[Span]:
    """Yield every span of one name, in the order in which they came."""
    rows = connection.execute(
        "SELECT spans.body, scope, resources.body FROM spans JOIN resources ON resources.id = resource_id "
        "WHERE name = ? ORDER BY seq",
        (name,),
    )
    for body, scope, resource in rows:
        yield decode_span(body, scope=scope, resource=decode_resource(resource))


def traces(connection: sqlite3.Connection, slim: Callable[[Span], Span] = lambda span: span) -> Iterator[list[Span]]:
    """Yield every trace's spans, one trace at a time, in an order that depends on nothing but the spans.

    Args:
        slim: takes off a span what the caller does not need before the next one is read.
    """
    resources = {
        resource_id: decode_resource(body) for resource_id, body in connection.execute("SELECT id, body FROM resources")
    }
    for _, rows in groupby(connection.execute(_TRACES), key=lambda row: row[0]):
        yield [slim(decode_span(body, scope=scope, resource=resources.get(r, {}))) for _, body, scope, r in rows]
