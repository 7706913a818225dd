"""Curves of other runs, read from their state folders: finished ones, or those of a daemon that runs elsewhere."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from lightning_trainer.dashboard.reading.history import known_policies, spread_rows
from lightning_trainer.errors import StoreError
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.store.scan import read_only

Rows = dict[str, tuple[list[StepMetrics], int]]
"""By the name of a curve: its steps, and how many there are of which some may have been left out."""
_PLAIN = ("state", ".lightning")
"""Names of state folders that say nothing; the folder above says which run it is."""


def run_name(folder: Path) -> str:
    return folder.parent.name if folder.name in _PLAIN else folder.name


async def read_other_runs(
    folders: Sequence[Path], policy: str | None, first: int | None, last: int | None
) -> tuple[Rows, list[str]]:
    """Return their steps by ``POLICY in RUN``, and a sentence for each run that cannot be read.

    Args:
        policy: only policies of this name.
    """
    return await asyncio.to_thread(_read, folders, policy, first, last)


def _read(folders: Sequence[Path], policy: str | None, first: int | None, last: int | None) -> tuple[Rows, list[str]]:
    found: Rows = {}
    problems = []
    for folder in folders:
        try:
            with read_only(folder / "lightning.sqlite") as connection:
                for name in known_policies(connection):
                    if policy in (None, name):
                        found[f"{name} in {run_name(folder)}"] = spread_rows(connection, name, first, last)
        except StoreError as error:
            problems.append(str(error))
    return found, problems
