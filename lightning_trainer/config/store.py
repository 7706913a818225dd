"""``[store]``: how much of what was recorded is kept."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from lightning_trainer.config.sections import Duration, Section, Size, duration


class StoreConfig(Section):
    """``[store]``: what is deleted of what was recorded; never what a step still can want."""

    retention_time: Duration = None
    """Spans and batches that came longer ago are deleted (``"30d"``, ``"12h"``); ``"none"``: age deletes nothing."""
    retention_size: Size = Field(default=20 * 2**30, ge=16 * 2**20)
    """Of the database with its log. Before it is reached the oldest spans and batches are deleted."""
    retention_steps: int | None = Field(default=None, ge=1)
    """What a policy's step consumed is deleted when so many steps have come after it."""
    journal: Path | None = None
    """A folder, on another disk if you like, that gets every accepted span once more until the next backup."""
    idempotency_window: Annotated[float, duration("30d")] = Field(default=30 * 86400.0, ge=60)
    """For so long after its spans were deleted an attempt is known: what is delivered again of it is not stored, and
    never trained."""
