"""Positions of incremental readers, stored so that a restart does not read all of history again."""

from lightning_trainer.store.connection import Connection


def position(connection: Connection, name: str, *, about: str = "") -> int:
    """Return a reader's position; 0 if there is none, or if it was stored with other settings (``about``)."""
    row = connection.execute("SELECT position FROM cursors WHERE name = ? AND about = ?", (name, about)).fetchone()
    return 0 if row is None else row[0]


def move(connection: Connection, name: str, position: int, *, about: str = "") -> None:
    """Store a reader's position."""
    connection.execute(
        """INSERT INTO cursors VALUES (?, ?, ?)
           ON CONFLICT(name) DO UPDATE SET position = excluded.position, about = excluded.about""",
        (name, position, about),
    )
