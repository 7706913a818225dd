"""Checkpoints of a backup, and weights of live versions: copied whole, put in place by renaming, and those of later
versions removed.

Invariant: all copies are made, beside their places, before the first is renamed: one that fails changes nothing.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lightning_trainer.errors import StoreError
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.upkeep.files import enough_room, leave_to_owner


def copy_folder(folder: Path, place: Path) -> None:
    """Copy the folder of a checkpoint or a version.

    Raises:
        StoreError: a file could not be read or written.
    """
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copytree(folder, place)
    except OSError as error:
        # shutil's own error lists all files, where the disk is full every one of them.
        why = error.args[0][0][-1] if isinstance(error, shutil.Error) else error
        raise StoreError(f"{folder} cannot be copied to {place.parent}: {why}") from error


def copy_weights(backup: Path, checkpoints: Mapping[str, Path], versions: Mapping[str, Path]) -> dict[str, int]:
    """Copy checkpoints and versions, each by its policy, into a backup; return the steps of the checkpoints.

    Raises:
        StoreError: a file could not be read or written.
    """
    for kind, folders in (("checkpoints", checkpoints), ("versions", versions)):
        for policy, folder in folders.items():
            copy_folder(folder, backup / kind / policy / folder.name)
    return {policy: int(folder.name.rpartition("-")[2]) for policy, folder in checkpoints.items()}


@contextmanager
def copied_beside(backup: Path, shared_dir: Path, *, besides: int = 0) -> Iterator[Callable[[], None]]:
    """Copy a backup's checkpoints and versions next to their places, and yield what puts them in place.

    Copies that were not put in place are removed.

    Args:
        besides: bytes that something else will take on the same disk.

    Raises:
        StoreError: there is no room, or a file could not be read or written.
    """
    folders = sorted([*backup.glob("checkpoints/*/step-*"), *backup.glob("versions/*/v*")])
    places = [shared_dir / folder.relative_to(backup) for folder in folders]
    copies = {place: place.with_name(f"{place.name}.restoring") for place in places}
    try:
        shared_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = (one for folder in folders for one in folder.rglob("*") if one.is_file())
        needed = besides + sum(one.stat().st_size for one in files)
    except OSError as error:
        raise StoreError(f"{shared_dir} cannot be written: {error}") from error
    enough_room(shared_dir, needed, "restoring")
    try:
        for folder, copy in zip(folders, copies.values(), strict=True):
            shutil.rmtree(copy, ignore_errors=True)  # of a restore that was killed
            copy_folder(folder, copy)
        for kind in {place.parents[1] for place in places}:
            leave_to_owner(kind, shared_dir)
        yield lambda: _put_in_place(copies)
    finally:
        for copy in copies.values():
            shutil.rmtree(copy, ignore_errors=True)


def _put_in_place(copies: Mapping[Path, Path]) -> None:
    """Rename copies to their places; those of steps not in the backup are removed at the next start."""
    for place, copy in copies.items():
        replaced = place.with_name(f"{place.name}.before-restore")
        shutil.rmtree(replaced, ignore_errors=True)
        if place.exists():
            os.rename(place, replaced)
        os.rename(copy, place)
        shutil.rmtree(replaced, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Newest:
    """The last numbers that a store knows, by policy; a checkpoint is saved before its version is published."""

    steps: Mapping[str, int]
    versions: Mapping[str, int]


def select_newest(connection: Connection) -> Newest:
    """Return the last steps and versions of a store."""
    steps = connection.execute("SELECT policy, max(step) FROM steps GROUP BY policy").fetchall()
    versions = connection.execute("SELECT policy, max(version) FROM versions GROUP BY policy").fetchall()
    return Newest(dict(steps), dict(versions))


def forget_later(shared_dir: Path, newest: Newest) -> None:
    """Remove weights and checkpoints of versions whose numbers will be reused.

    Args:
        newest: of the restored store.
    """
    for version in shared_dir.glob("versions/*/v*"):
        number = version.name.removeprefix("v")
        if number.isdigit() and int(number) > newest.versions.get(version.parent.name, -1):
            shutil.rmtree(version, ignore_errors=True)
    for policy, last in newest.steps.items():
        for checkpoint in (shared_dir / "checkpoints" / policy).glob("step-*"):
            number = checkpoint.name.removeprefix("step-")
            if number.isdigit() and int(number) > last:
                shutil.rmtree(checkpoint, ignore_errors=True)


def set_metrics_aside(state_dir: Path) -> None:
    """Rename the metrics files, which are rebuilt from the store, and end their runs in Weights & Biases.

    Raises:
        OSError: one cannot be renamed.
    """
    for kept in (*state_dir.glob("metrics/*.jsonl"), *state_dir.glob("metrics/*.wandb-run")):
        kept.replace(kept.with_name(f"{kept.name}.before-restore"))
