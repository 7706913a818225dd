"""Integrity check of a store on PostgreSQL: its counts, and our checksums of its contents.

The server itself enforces relations; its own tool, ``pg_amcheck``, checks pages and indexes.
"""

import zlib
from collections.abc import Callable, Iterator

from lightning_trainer.errors import StoreError
from lightning_trainer.store.batch_codec import decode_batch, decode_report
from lightning_trainer.store.connection import Connection, stream
from lightning_trainer.store.upkeep.check import Finding, damaged_media, finding, undecodable

_COUNTED = {
    "spans": "SELECT count(*) FROM spans",
    "calls": "SELECT count(*) FROM spans WHERE scope = 'lightning.gateway'",
    "rollouts": "SELECT count(DISTINCT rollout_id) FROM attempts",
}


def check(connection: Connection, *, quick: bool = False) -> Iterator[Finding]:
    """Yield the finding on each part as soon as its check has ended.

    Args:
        quick: only the counts, not every checksum.
    """
    yield finding("counts", len(_COUNTED), list(_miscounted(connection)))
    if not quick:
        yield _looked_through(connection, "spans", "SELECT trace_id, span_id, body, checksum FROM spans", _span)
        yield _looked_through(connection, "media", "SELECT hash, body FROM media", lambda row: damaged_media(*row))
        for column, what, decode in (("batch", "batches", decode_batch), ("report", "reports of steps", decode_report)):
            rows = f"SELECT policy, step, {column} FROM steps WHERE {column} IS NOT NULL"
            yield _looked_through(connection, what, rows, lambda row, decode=decode: _step(row, decode))


def _miscounted(connection: Connection) -> Iterator[str]:
    held = dict(connection.execute("SELECT name, value FROM totals").fetchall())
    for name, query in _COUNTED.items():
        (number,) = connection.execute(query).fetchone()
        if number != held.get(name, 0):
            yield f"there are {number:,} {name}, and {held.get(name, 0):,} were counted"


def _looked_through(connection: Connection, what: str, query: str, wrong: Callable[[tuple], str | None]) -> Finding:
    read, damaged = 0, []
    try:
        for row in stream(connection, query):
            read += 1
            if (said := wrong(row)) is not None:
                damaged.append(said)
    except StoreError as error:
        damaged.append(str(error))
    return finding(what, read, damaged)


def _span(row: tuple) -> str | None:
    trace_id, span_id, body, checksum = row
    if checksum is None or zlib.crc32(body) == checksum:
        return None
    return f"span {trace_id}/{span_id}: its bytes are not those that were stored"


def _step(row: tuple, decode: Callable[[bytes], object]) -> str | None:
    policy, step, body = row
    why = undecodable(body, decode)
    return None if why is None else f"step {step} of policy {policy!r}: {why}"
