"""What the daemons of a store keep in it for each other: the id that all of them prove, and the names of runs.

A name is held for some seconds at a time (by the server's clock), so that it becomes free by itself if its daemon dies.
"""

from lightning_trainer.store.connection import Connection
from lightning_trainer.store.postgres.turns import NOW


def agree_on_id(connection: Connection, own: str) -> str:
    """Return the id of the store's daemons.

    Args:
        own: the caller's id, which becomes the id of all if there is none yet.
    """
    connection.execute("INSERT INTO identity VALUES (1, ?) ON CONFLICT DO NOTHING", (own,))
    (agreed,) = connection.execute("SELECT daemon FROM identity").fetchone()
    return agreed


def hold_run(connection: Connection, name: str, holder: str, lasts_s: float) -> bool:
    """Hold a run's name for some seconds from now; return False while another holder has it.

    Args:
        holder: the process that runs it, whichever daemon it asks.
        lasts_s: how long the hold lasts, in seconds.
    """
    connection.execute(f"DELETE FROM runs WHERE until_ns <= {NOW}")
    written = connection.execute(
        f"""INSERT INTO runs VALUES (?, ?, {NOW} + ?)
            ON CONFLICT(name) DO UPDATE SET until_ns = excluded.until_ns WHERE runs.holder = excluded.holder""",
        (name, holder, int(lasts_s * 1e9)),
    )
    return written.rowcount == 1


def release_run(connection: Connection, name: str, holder: str) -> None:
    """End a hold; does nothing if another holder has the name."""
    connection.execute("DELETE FROM runs WHERE name = ? AND holder = ?", (name, holder))


def held_runs(connection: Connection) -> list[str]:
    """Return the names that are held, sorted."""
    return [name for (name,) in connection.execute(f"SELECT name FROM runs WHERE until_ns > {NOW} ORDER BY name")]
