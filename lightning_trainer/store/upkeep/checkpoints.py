"""Checkpoints of a backup, and weights of live versions: they are copied whole and put in place by renaming, and what
another run may have left under their names is set aside.

Invariant: all copies are made, next to their places, before the first is renamed, so a copy that fails changes nothing.
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from lightning_trainer.errors import StoreError
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.upkeep.files import PUBLICATION, aside_of, enough_room, leave_to_owner


def copy_folder(folder: Path, place: Path) -> None:
    """Copy the folder of a checkpoint or a version.

    Raises:
        StoreError: a file could not be read or written.
    """
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copytree(folder, place)
    except OSError as error:
        # shutil's own error lists all files that failed, which is every one if the disk is full.
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


Checksums: TypeAlias = Mapping[tuple[str, str], str]
"""The checksums of the weights that a store knows, by policy and the name of the version's folder."""


def select_checksums(connection: Connection) -> Checksums:
    """Return the checksums of a store's versions."""
    rows = connection.execute("SELECT policy, version, checksum FROM versions WHERE checksum IS NOT NULL").fetchall()
    return {(policy, f"v{version:08d}"): checksum for policy, version, checksum in rows}


@contextmanager
def copied_beside(
    backup: Path, shared_dir: Path, *, besides: int = 0
) -> Iterator[Callable[[Checksums], Sequence[Path]]]:
    """Copy a backup's checkpoints and versions next to their places, and yield a function that puts them in place: it
    takes the checksums that the restored store knows, sets everything else aside, and returns where that is now.

    Copies that were not put in place are removed.

    Args:
        besides: bytes that other data will take on the same disk.

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
            shutil.rmtree(copy, ignore_errors=True)  # left by a restore that was killed
            copy_folder(folder, copy)
        for kind in {place.parents[1] for place in places}:
            leave_to_owner(kind, shared_dir)
        yield lambda known: _put_in_place(copies, shared_dir, known)
    finally:
        for copy in copies.values():
            shutil.rmtree(copy, ignore_errors=True)


def _put_in_place(copies: Mapping[Path, Path], shared_dir: Path, known: Checksums) -> Sequence[Path]:
    """Set other checkpoints and weights aside, and rename the copies to their places; return where the others are."""
    asides = _set_others_aside(shared_dir, known, set(copies.values()))
    for place, copy in copies.items():
        if place.exists():  # the same weights
            shutil.rmtree(place)
        os.rename(copy, place)
    return asides


def _set_others_aside(shared_dir: Path, known: Checksums, copies: Collection[Path]) -> Sequence[Path]:
    """Set aside all checkpoints, and the weights of versions that differ from what the store knows under their names.

    No checkpoint stays, since nothing in it tells the restored run from another run of the same policy.
    """
    asides: dict[Path, Path] = {}
    for folder in (*shared_dir.glob("checkpoints/*/step-*"), *shared_dir.glob("versions/*/v*")):
        root = folder.parent
        if folder in copies or "~" in root.name or _is_known(folder, known):
            continue
        if root not in asides:
            asides[root] = aside_of(root)
            asides[root].mkdir(mode=0o700)
            leave_to_owner(asides[root], root)
        os.rename(folder, asides[root] / folder.name)
    return list(asides.values())


def _is_known(folder: Path, known: Checksums) -> bool:
    checksum = known.get((folder.parent.name, folder.name))
    try:
        return checksum is not None and json.loads((folder / PUBLICATION).read_text())["checksum"] == checksum
    except (OSError, ValueError, LookupError, TypeError):
        return False


def set_metrics_aside(state_dir: Path) -> None:
    """Rename the metrics files, which are rebuilt from the store, and end their runs in Weights & Biases.

    Raises:
        OSError: one cannot be renamed.
    """
    for kept in (*state_dir.glob("metrics/*.jsonl"), *state_dir.glob("metrics/*.wandb-run")):
        kept.replace(kept.with_name(f"{kept.name}.before-restore"))
