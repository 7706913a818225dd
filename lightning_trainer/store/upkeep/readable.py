"""Salvages the readable rows of a table: a damaged page costs the rows on it, and not the ones after it."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field

_FARTHEST = 2**40
_DAMAGED = -1


@dataclass(slots=True)
class Reading:
    """One pass over a table; unreadable rows are counted."""

    connection: sqlite3.Connection
    table: str
    columns: str
    damaged: list[str] = field(default_factory=list)
    """The damaged places, in words."""
    read: int = 0

    def by_number(self, key: str = "rowid") -> Iterator[tuple]:
        """Yield the rows of a table with row numbers, in order; each with its number first."""
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
        it."""
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
        """Return the first row after the damage: searched in growing steps, and then between the last two."""
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
