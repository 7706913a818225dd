"""How far readers that go on where they were have come: kept, so that a restart does not begin with all of history."""

import sqlite3


def position(connection: sqlite3.Connection, name: str, *, about: str = "") -> int:
    """Return where a reader was; 0 where it never was, or read with other settings (``about``) than now."""
    row = connection.execute("SELECT position FROM cursors WHERE name = ? AND about = ?", (name, about)).fetchone()
    return 0 if row is None else row[0]


def move(connection: sqlite3.Connection, name: str, position: int, *, about: str = "") -> None:
    connection.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?, ?)", (name, position, about))
