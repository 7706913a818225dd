"""Requests that reached a daemon that does not train the policy: it leaves them in the store for the daemon that holds
the turn (``turns.py``).

There is one request at a time per policy. It is valid as long as the asked daemon waits for the answer, to within the
duration of a turn (by the server's clock), so that no request is carried out after its caller has left, and nothing has
to be cleaned up after a daemon that died.
"""

from dataclasses import dataclass

from lightning_trainer.errors import LightningError, RollbackError
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.postgres.turns import NOW


@dataclass(frozen=True, slots=True)
class Request:
    """A rollback or a promotion."""

    id: str
    """Chosen by the asker to recognize its own request."""
    version: int
    promote: bool
    asked_of: str
    """The URL of the daemon that was asked, for display."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a request ended."""

    said: str | None = None
    """The error; None: it was done."""
    refused: bool = False
    """Whether the request is invalid and nothing has changed; otherwise trainer or engine failed."""

    @property
    def error(self) -> LightningError | None:
        """Return the error that the asking daemon should raise; None if the request was carried out."""
        if self.said is None:
            return None
        return RollbackError(self.said) if self.refused else LightningError(self.said)


def put(connection: Connection, policy: str, request: Request, lasts_s: float) -> Answer | None:
    """Leave a request, or extend its time; once it is answered, remove it and return the answer.

    Raises:
        RollbackError: another request for this policy is still under way.
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
    """Return the request that waits for an answer, if any."""
    row = connection.execute(
        f"""SELECT id, version, promote, asked_of FROM requests
            WHERE policy = ? AND answered = 0 AND until_ns > {NOW}""",
        (policy,),
    ).fetchone()
    return None if row is None else Request(row[0], row[1], bool(row[2]), row[3])


def answer(connection: Connection, policy: str, identifier: str, given: Answer) -> None:
    """Answer a request, if it still exists."""
    connection.execute(
        "UPDATE requests SET answered = 1, said = ?, refused = ? WHERE policy = ? AND id = ?",
        (given.said, int(given.refused), policy, identifier),
    )


def withdraw(connection: Connection, policy: str, identifier: str) -> None:
    """Remove a request, if it still exists."""
    connection.execute("DELETE FROM requests WHERE policy = ? AND id = ?", (policy, identifier))
