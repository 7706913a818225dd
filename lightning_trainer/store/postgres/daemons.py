"""What the daemons of a store keep in it about themselves: the id that all of them prove."""

from lightning_trainer.store.connection import Connection


def agree_on_id(connection: Connection, own: str) -> str:
    """Return the id of the store's daemons, ``own`` if there is none yet."""
    connection.execute("INSERT INTO identity VALUES (1, ?) ON CONFLICT DO NOTHING", (own,))
    (agreed,) = connection.execute("SELECT daemon FROM identity").fetchone()
    return agreed
