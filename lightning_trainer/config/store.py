"""``[store]``: where what was recorded is kept, and how much of it."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator

from lightning_trainer.config.sections import Duration, Section, Size, duration


class StoreConfig(Section):
    """``[store]``: where what was recorded is, and what of it is deleted; never what a step still can want."""

    url: SecretStr | None = None
    """``postgresql://USER@HOST:PORT/DATABASE``: a PostgreSQL server, which several daemons may share; absent: a SQLite
    file in ``state_dir``, one daemon's alone. A password is best left to ``PGPASSWORD`` or ``~/.pgpass``; one that is
    in the URL is shown nowhere."""
    shared_dir: Path | None = None
    """Of daemons that share a store: the folder that all of them see (a network file system), for checkpoints and the
    weights of versions; absent: ``state_dir``, which is enough for one daemon."""
    turn_s: float = Field(default=15.0, ge=2, le=3600)
    """Of daemons that share a store: how long one that trains a policy may be silent before another one trains it."""
    retention_time: Duration = None
    """Spans and batches that came longer ago are deleted (``"30d"``, ``"12h"``); ``"none"``: age deletes nothing."""
    retention_size: Size = Field(default=20 * 2**30, ge=16 * 2**20)
    """Of the database with its log. Before it is reached the oldest spans and batches are deleted."""
    media_size_each: Size = Field(default=8 * 2**20, ge=2**10)
    """Of one image, sound or document in a message; of a larger one the reference is kept alone."""
    media_size: Size = Field(default=4 * 2**30, ge=2**20)
    """Of all of them together, each counted once. Before it is reached the oldest are deleted."""
    retention_steps: int | None = Field(default=None, ge=1)
    """What a policy's step consumed is deleted when so many steps have come after it."""
    journal: Path | None = None
    """A folder, on another disk if you like, that gets every accepted span once more until the next backup."""
    idempotency_window: Annotated[float, duration("30d")] = Field(default=30 * 86400.0, ge=60)
    """For so long after its spans were deleted an attempt is known: what is delivered again of it is not stored, and
    never trained."""

    @field_validator("url")
    @classmethod
    def _of_postgresql(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not url.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("it has to begin with postgresql://; leave it out for SQLite")  # it may hold a password
        return url
