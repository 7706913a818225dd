"""Integrity check of a store: SQLite's own check, the relations of its tables, and our checksums of its contents.

A damaged table is read around the damage: a damaged page costs the rows on it, but not the rows after it.
"""

import hashlib
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lightning_trainer.errors import StoreError
from lightning_trainer.store.batch_codec import decode_batch, decode_report
from lightning_trainer.store.connection import has_table

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """The findings of one part of the check."""

    what: str
    looked_at: int | None
    """How many were checked; None if there is nothing to count."""
    damaged: tuple[str, ...]
    """The first few damaged items, in words."""
    number: int
    """How many are damaged."""


def check(connection: sqlite3.Connection, *, quick: bool = False) -> Iterator[Finding]:
    """Yield the finding on each part as soon as its check has ended.

    Args:
        quick: run only SQLite's quick check and the check of relations, without every index and checksum.
    """
    pragma = "quick_check" if quick else "integrity_check"
    yield finding("pages and indexes", None, list(_said_by_sqlite(connection, pragma)))
    yield finding("relations of tables", None, list(_broken_relations(connection)))
    if not quick:
        yield _spans(connection)
        yield _media(connection)
        yield _steps(connection, "batch", "batches", decode_batch)
        yield _steps(connection, "report", "reports of steps", decode_report)


def finding(what: str, looked_at: int | None, damaged: list[str]) -> Finding:
    """Return the finding on one part, with the first few damaged items."""
    return Finding(what, looked_at, tuple(damaged[:_NAMED]), len(damaged))


def _said_by_sqlite(connection: sqlite3.Connection, pragma: str) -> Iterator[str]:
    try:
        for (line,) in connection.execute(f"PRAGMA {pragma}(100)"):
            if line != "ok":
                yield line.strip()
    except sqlite3.DatabaseError as error:
        yield str(error)


def _broken_relations(connection: sqlite3.Connection) -> Iterator[str]:
    try:
        for table, row, other, _ in connection.execute("PRAGMA foreign_key_check"):
            yield f"row {row} of {table} names what is not in {other}"
    except sqlite3.DatabaseError as error:
        yield str(error)


def _spans(connection: sqlite3.Connection) -> Finding:
    has_checksums = any(row[1] == "checksum" for row in connection.execute("PRAGMA table_info(spans)"))
    reading = Reading(connection, "spans", "trace_id, span_id, body, " + ("checksum" if has_checksums else "NULL"))
    wrong = [
        f"span {trace_id}/{span_id}: its bytes are not those that were stored"
        for _, trace_id, span_id, body, checksum in reading.by_number("seq")
        if checksum is not None and zlib.crc32(body) != checksum
    ]
    return finding("spans", reading.read, [*reading.damaged, *wrong])


def _media(connection: sqlite3.Connection) -> Finding:
    if not has_table(connection, "media"):  # an earlier schema
        return finding("media", 0, [])
    reading = Reading(connection, "media", "hash, body")
    wrong = [said for _, digest, body in reading.by_number("seq") if (said := damaged_media(digest, body)) is not None]
    return finding("media", reading.read, [*reading.damaged, *wrong])


def damaged_media(digest: str, body: bytes) -> str | None:
    """Return what is wrong with bytes that are stored by their hash; None if they are sound."""
    if hashlib.sha256(body).hexdigest() == digest:
        return None
    return f"media {digest[:12]}: its bytes are not those that were stored"


def _steps(connection: sqlite3.Connection, column: str, what: str, decode: Callable[[bytes], object]) -> Finding:
    reading = Reading(connection, "steps", f"policy, step, {column}")
    wrong = []
    for _, policy, step, body in reading.by_number():
        if body is not None and (why := undecodable(body, decode)) is not None:
            wrong.append(f"step {step} of policy {policy!r}: {why}")
    return finding(what, reading.read, [*reading.damaged, *wrong])


def undecodable(body: bytes, decode: Callable[[bytes], object]) -> str | None:
    """Return why bytes cannot be decoded; None if they can."""
    try:
        decode(body)
    except (zlib.error, ValueError, KeyError, TypeError, StoreError) as error:
        return f"{type(error).__name__}: {error}"
    return None


_FARTHEST = 2**40
_DAMAGED = -1


@dataclass(slots=True)
class Reading:
    """One pass over a table that may be damaged; it goes around the damage and records where that is."""

    connection: sqlite3.Connection
    table: str
    columns: str
    damaged: list[str] = field(default_factory=list)
    """The damaged places, in words."""
    read: int = 0

    def by_number(self, key: str = "rowid") -> Iterator[tuple]:
        """Yield the rows of a table that has row numbers, in order, each with its number first."""
        last = 0
        while True:
            try:
                for row in self._behind(key, last):
                    last = row[0]
                    self.read += 1
                    yield row
                return
            except sqlite3.DatabaseError:
                found = self._next_readable(key, last)
                until = "the end" if found is None else f"row {found}"
                self.damaged.append(f"from row {last + 1} to {until}")
                if found is None:
                    return
                last = found - 1

    def by_key(self, key: str) -> Iterator[tuple]:
        """Yield the rows of a table without row numbers: from the beginning up to the damage, and from the end back to
        the damage."""
        seen = 0
        for order in ("ASC", "DESC"):
            ordered = ", ".join(f"{column} {order}" for column in key.split(", "))
            try:
                for row in self.connection.execute(f"SELECT {self.columns} FROM {self.table} ORDER BY {ordered}"):
                    seen += 1
                    self.read += 1
                    yield row
                return
            except sqlite3.DatabaseError:
                if order == "ASC":
                    self.damaged.append(f"behind {seen} rows")

    def _behind(self, key: str, last: int) -> Iterator[tuple]:
        yield from self.connection.execute(
            f"SELECT {key}, {self.columns} FROM {self.table} NOT INDEXED WHERE {key} > ? ORDER BY {key}", (last,)
        )

    def _next_readable(self, key: str, last: int) -> int | None:
        """Return the first readable row after the damage; search in growing steps, and then between the last two."""
        step = 1
        while (found := self._first_behind(key, last + step)) == _DAMAGED:
            step *= 2
            if step > _FARTHEST:
                return None
        bad, good = last + step // 2, last + step
        while good - bad > 1:
            middle = (bad + good) // 2
            if (nearer := self._first_behind(key, middle)) == _DAMAGED:
                bad = middle
            else:
                good, found = middle, nearer
        return found

    def _first_behind(self, key: str, last: int) -> int | None:
        """Return the number of the first row after one, None if there is none, and -1 if it cannot be read."""
        try:
            row = next(self._behind(key, last), None)
        except sqlite3.DatabaseError:
            return _DAMAGED
        return None if row is None else row[0]
