"""``[store]``: where recorded data is kept, and how much of it."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator

from lightning_trainer.config.sections import Duration, Section, Size, duration


class StoreConfig(Section):
    """``[store]``: where recorded data is kept, and when it is deleted; data that a step may still need never is."""

    url: SecretStr | None = None
    """``postgresql://USER@HOST:PORT/DATABASE``: a PostgreSQL server, which several daemons may share; absent: a SQLite
    file in ``state_dir``, for one daemon alone. A password is best left to ``PGPASSWORD`` or ``~/.pgpass``; one in the
    URL is shown nowhere."""
    shared_dir: Path | None = None
    """For daemons that share a store: a folder that all of them see (a network file system), for checkpoints and the
    weights of versions; absent: ``state_dir``, which is enough for one daemon."""
    turn_s: float = Field(default=15.0, ge=2, le=3600)
    """For daemons that share a store: how long the one that trains a policy may be silent before another takes over."""
    retention_time: Duration = None
    """Spans and batches older than this are deleted (``"30d"``, ``"12h"``); ``"none"``: nothing is deleted by age."""
    retention_size: Size = Field(default=20 * 2**30, ge=16 * 2**20)
    """Limit of the database with its log. Before it is reached, the oldest spans and batches are deleted."""
    media_size_each: Size = Field(default=8 * 2**20, ge=2**10)
    """Limit of one image, sound or document in a message; only the reference to a larger one is kept."""
    media_size: Size = Field(default=4 * 2**30, ge=2**20)
    """Limit of all of them together, each counted once. Before it is reached, the oldest are deleted."""
    retention_steps: int | None = Field(default=None, ge=1)
    """Data that a policy's step consumed is deleted after this many further steps."""
    journal: Path | None = None
    """A folder, possibly on another disk, to which every accepted span is also written, and kept until backed up."""
    idempotency_window: Annotated[float, duration("30d")] = Field(default=30 * 86400.0, ge=60)
    """How long an attempt is remembered after its spans were deleted: spans of it that are delivered again are not
    stored, and never trained."""

    @field_validator("url")
    @classmethod
    def _of_postgresql(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not url.get_secret_value().startswith(("postgresql://", "postgres://")):
            raise ValueError("it has to begin with postgresql://; leave it out for SQLite")  # it may hold a password
        return url
