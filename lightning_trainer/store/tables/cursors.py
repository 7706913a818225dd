"""How far readers that go on where they were have come: kept, so that a restart does not begin with all of history."""

from lightning_trainer.store.connection import Connection


def position(connection: Connection, name: str, *, about: str = "") -> int:
    """Return where a reader was; 0 where it never was, or read with other settings (``about``) than now."""
    row = connection.execute("SELECT position FROM cursors WHERE name = ? AND about = ?", (name, about)).fetchone()
    return 0 if row is None else row[0]


def move(connection: Connection, name: str, position: int, *, about: str = "") -> None:
    connection.execute(
        """INSERT INTO cursors VALUES (?, ?, ?)
           ON CONFLICT(name) DO UPDATE SET position = excluded.position, about = excluded.about""",
        (name, position, about),
    )
