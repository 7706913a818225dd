"""``[store]``: how much of what was recorded is kept."""

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from lightning_trainer.config.section import Section

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_BYTES = {
    "B": 1,
    **{name: 1000**power for power, name in enumerate(("KB", "MB", "GB", "TB"), start=1)},
    **{name: 1024**power for power, name in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)},
}


def _measure(units: dict[str, int], example: str):
    pattern = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(sorted(units, key=len, reverse=True))})")

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f'write a number with its unit, like "{example}"; there are {", ".join(units)}')
        if value == "none":
            return None
        if (match := pattern.fullmatch(value.strip())) is None:
            raise ValueError(f'write a number with its unit, like "{example}", or "none"; there are {", ".join(units)}')
        return float(match[1]) * units[match[2]]

    return BeforeValidator(read)


def duration(example: str) -> BeforeValidator:
    """Return what reads seconds from a text with a unit."""
    return _measure(_SECONDS, example)


Duration = Annotated[float | None, _measure(_SECONDS, "30d")]
"""Seconds."""
Size = Annotated[float | None, _measure(_BYTES, "20GiB")]
"""Bytes."""


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
    idempotency_window: Annotated[float, _measure(_SECONDS, "30d")] = Field(default=30 * 86400.0, ge=60)
    """For so long after its spans were deleted an attempt is known: what is delivered again of it is not stored, and
    never trained."""
