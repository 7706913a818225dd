"""Curves of other runs, read from their state folders: finished ones, or those of a daemon that runs elsewhere."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from lightning_trainer.dashboard.reading.history import known_policies, spread_rows
from lightning_trainer.errors import StoreError
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.store.scan import read_only

Rows = dict[str, tuple[list[StepMetrics], int]]
"""By the name of a curve: the steps that are shown, and how many there are."""
_PLAIN = ("state", ".lightning")
"""Default names of state folders; the folder above says which run it is."""


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return a name for each run: its state folder's, or the name of the folder above if the former is a default.

    Runs that would get the same name are named by their whole paths.
    """
    names = [folder.parent.name if folder.name in _PLAIN else folder.name for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]


async def read_other_runs(
    folders: Sequence[Path], policy: str | None, first: int | None, last: int | None
) -> tuple[Rows, list[str]]:
    """Return the runs' steps by ``POLICY in RUN``, and a sentence for each run that cannot be read.

    Args:
        policy: only policies of this name.
    """
    return await asyncio.to_thread(_read, folders, policy, first, last)


def _read(folders: Sequence[Path], policy: str | None, first: int | None, last: int | None) -> tuple[Rows, list[str]]:
    found: Rows = {}
    problems = []
    for folder, run in zip(folders, run_names(folders), strict=True):
        try:
            with read_only(folder / "lightning.sqlite") as connection:
                for name in known_policies(connection):
                    if policy in (None, name):
                        found[f"{name} in {run}"] = spread_rows(connection, name, first, last)
        except StoreError as error:
            problems.append(str(error))
    return found, problems
