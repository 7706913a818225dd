"""Joins the records of one call across traces: short rows in a temporary SQLite file.

Records with the same response id are told apart as for training (``ingest/agreement.py``). Records without an id are
joined if our client says inside which span of another tracer its call was made, as in ``ingest/joining.py``: a record
describes the last call made inside it.
"""

import pickle
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from lightning_trainer.ingest.agreement import Statement, parted
from lightning_trainer.ingest.dialects.genai import StreamPart, paired


class Row(NamedTuple):
    """The short row that is kept of a call, from the records of one trace."""

    call: str
    """Equal for records that may be of one call."""
    rank: str
    """Sorts the most faithful record first."""
    span: str
    """The span of its most faithful record."""
    agent: str | None
    source: str | None
    prompt_tokens: int | None
    sampled_tokens: int | None
    fidelity: str
    interrupted: bool
    cancelled: bool
    route: str | None
    """``gateway`` if our client sent the call there, ``home`` if the daemon was away, ``trusted`` if it went to a
    trusted host and returned no token ids."""
    policy: str | None
    server: str | None
    """For exact calls that the gateway did not answer: the server, with ``model`` as its name for the model."""
    model: str | None
    tools: str | None
    """One per line."""
    start_ns: int
    outer: str | None
    """The span of another tracer inside which the call was made."""
    statements: bytes
    """Pickled."""


class Failed(NamedTuple):
    """A request that no model answered."""

    span: str
    agent: str | None
    scope: str
    outer: str | None


class Inside(NamedTuple):
    """A span of another tracer, and the record of the call that it is or is inside of."""

    span: str
    record: str


class Part(NamedTuple):
    """One of the two spans of a stream recorded by Logfire; see ``StreamPart``."""

    place: str
    at_ns: int
    is_log: bool
    span: str


Kept = Row | Failed | Inside | Part

_TABLES: tuple[tuple[str, type[NamedTuple]], ...] = (
    ("calls", Row),
    ("failed", Failed),
    ("inside", Inside),
    ("parts", Part),
)
_INSERT = {
    kind: f"INSERT INTO {table} VALUES ({', '.join('?' * len(kind._fields))})"  # pyright: ignore[reportAttributeAccessIssue]
    for table, kind in _TABLES
}


def create(rows: sqlite3.Connection) -> None:
    """Create the tables."""
    for table, kind in _TABLES:
        rows.execute(f"CREATE TABLE {table}({', '.join(kind._fields)})")  # pyright: ignore[reportAttributeAccessIssue]


def add(rows: sqlite3.Connection, found: Iterable[Kept]) -> None:
    """Insert rows of a trace."""
    for row in found:
        rows.execute(_INSERT[type(row)], row)


def by_name(span: str) -> str:
    """Return the value of ``Row.call`` for a record without a response id: unique, so it matches no other record."""
    return f"at{span}"


def join_across_traces(rows: sqlite3.Connection) -> None:
    """Join records without an id with the calls made inside them, and count a failed request once."""
    if rows.execute("SELECT 1 FROM inside LIMIT 1").fetchone() is None:
        return
    parts = rows.execute("SELECT * FROM parts ORDER BY place, at_ns, is_log, span")
    pairs = paired(StreamPart(place, at_ns, bool(is_log), ("", span)) for place, at_ns, is_log, span in parts)
    rows.executemany(_INSERT[Inside], [(request.span[1], log.span[1]) for request, log in pairs])
    for statement in _JOIN:
        rows.execute(statement)


_JOIN = (
    "CREATE INDEX inside_span ON inside(span)",
    "CREATE INDEX calls_span ON calls(span)",
    # The last call made inside each record; SQLite takes the other columns from the row with the maximum.
    "CREATE TABLE pairs AS SELECT record AS outer, calls.span AS inner, calls.call AS call, max(start_ns) "
    "FROM calls JOIN inside ON inside.span = calls.outer WHERE record != calls.span GROUP BY record",
    "CREATE INDEX pairs_outer ON pairs(outer)",
    "UPDATE calls SET call = (SELECT call FROM pairs WHERE pairs.outer = calls.span) "
    "WHERE call = 'at' || span AND span IN (SELECT outer FROM pairs)",
    "UPDATE calls SET call = (SELECT record.call FROM pairs JOIN calls AS record ON record.span = pairs.outer "
    "WHERE pairs.inner = calls.span) WHERE call = 'at' || span AND span IN "
    "(SELECT inner FROM pairs JOIN calls AS record ON record.span = pairs.outer)",
    "DELETE FROM failed WHERE span IN (SELECT record FROM inside WHERE span IN "
    "(SELECT outer FROM calls UNION ALL SELECT outer FROM failed))",
)


def failed(rows: sqlite3.Connection) -> Iterator[tuple[str | None, str, int]]:
    """Yield agent, instrumentation, and the number of its requests that no model answered."""
    yield from rows.execute("SELECT agent, scope, count(*) FROM failed GROUP BY agent, scope")


def calls(rows: sqlite3.Connection) -> Iterator[list[Row]]:
    """Yield the rows of each call, the most faithful first."""
    ordered = rows.execute("SELECT * FROM calls ORDER BY call, rank, span")
    for _, group in groupby(map(Row._make, ordered), key=attrgetter("call")):
        found = list(group)
        if len(found) == 1:
            yield found
            continue
        statements = [[Statement(*stated) for stated in pickle.loads(row.statements)] for row in found]
        for places in parted(statements):
            yield [found[place] for place in places]
