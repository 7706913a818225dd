"""What people ask of a daemon that does not train a policy, left here for the one whose turn it is (``turns.py``).

One request at a time for each policy. It lasts as long as the daemon that was asked waits for the answer, to within the
seconds that a turn lasts (by the server's clock): so nothing is done later that nobody waits for any more, and nothing
has to be cleared away after a daemon that died.
"""

from dataclasses import dataclass

from lightning_trainer.errors import LightningError, RollbackError
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.postgres.turns import NOW


@dataclass(frozen=True, slots=True)
class Request:
    """A rollback or a promotion."""

    id: str
    """The asker's, so that it knows its own again."""
    version: int
    promote: bool
    asked_of: str
    """The daemon that was asked, for people: its URL."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request ended."""

    said: str | None = None
    """What was wrong; None: it was done."""
    refused: bool = False
    """Whether there is no such way, and everything stays as it was; else trainer or engine failed on it."""

    @property
    def error(self) -> LightningError | None:
        if self.said is None:
            return None
        return RollbackError(self.said) if self.refused else LightningError(self.said)


def put(connection: Connection, policy: str, request: Request, lasts_s: float) -> Answer | None:
    """Leave a request, or let it last from now; return its answer, and remove both, as soon as there is one.

    Raises:
        RollbackError: another daemon was asked for something that is not done yet.
    """
    row = connection.execute(
        f"""SELECT id, version, promote, asked_of, answered, said, refused, until_ns > {NOW} FROM requests
            WHERE policy = ?""",
        (policy,),
    ).fetchone()
    if row is not None:
        identifier, version, promote, asked_of, answered, said, refused, lasts = row
        if identifier == request.id and answered:
            withdraw(connection, policy, request.id)
            return Answer(said, bool(refused))
        if identifier != request.id and lasts:
            what = "promotion of" if promote else "rollback to"
            raise RollbackError(f"a {what} version {version} is under way, asked of the daemon {asked_of}; wait for it")
    connection.execute(
        f"""INSERT INTO requests(policy, id, version, promote, asked_of, until_ns) VALUES (?, ?, ?, ?, ?, {NOW} + ?)
            ON CONFLICT(policy) DO UPDATE SET id = excluded.id, version = excluded.version, promote = excluded.promote,
                asked_of = excluded.asked_of, until_ns = excluded.until_ns, answered = 0, said = NULL, refused = 0""",
        (policy, request.id, request.version, int(request.promote), request.asked_of, int(lasts_s * 1e9)),
    )
    return None


def waiting(connection: Connection, policy: str) -> Request | None:
    """Return the request that waits for an answer."""
    row = connection.execute(
        f"""SELECT id, version, promote, asked_of FROM requests
            WHERE policy = ? AND answered = 0 AND until_ns > {NOW}""",
        (policy,),
    ).fetchone()
    return None if row is None else Request(row[0], row[1], bool(row[2]), row[3])


def answer(connection: Connection, policy: str, identifier: str, given: Answer) -> None:
    """Answer a request; nothing where it is gone."""
    connection.execute(
        "UPDATE requests SET answered = 1, said = ?, refused = ? WHERE policy = ? AND id = ?",
        (given.said, int(given.refused), policy, identifier),
    )


def withdraw(connection: Connection, policy: str, identifier: str) -> None:
    """Remove a request; nothing where it is gone."""
    connection.execute("DELETE FROM requests WHERE policy = ? AND id = ?", (policy, identifier))
