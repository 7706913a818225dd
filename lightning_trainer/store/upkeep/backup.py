"""Backups: a store's database, the checkpoint from which its recorded steps continue, live weights, the daemon's id.

A backup is one snapshot, taken with or without a running daemon; what the daemon commits meanwhile is not included.
"""

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lightning_trainer.errors import StoreError
from lightning_trainer.store.retention.retention import measure
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.upkeep.checkpoints import copy_weights
from lightning_trainer.store.upkeep.files import DAEMON_ID, STORE, enough_room, put_in_place
from lightning_trainer.store.upkeep.journal import delete_before

MANIFEST = "backup.json"
_PAGES = 4096


@dataclass(frozen=True, slots=True)
class Backup:
    """A finished backup."""

    folder: Path
    at_ns: int
    spans: int
    bytes: int
    checkpoints: dict[str, int]
    """The step of each policy's checkpoint."""


def back_up(
    state_dir: Path,
    folder: Path,
    checkpoints: Mapping[str, Path],
    *,
    versions: Mapping[str, Path] = MappingProxyType({}),
    journal: Path | None = None,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Backup:
    """Copy a state folder's store into a new folder, and check the copy.

    Args:
        checkpoints: the newest checkpoint of each policy, by the policy's name.
        versions: the weights of live versions that the checkpoints do not lead to, by policy.
        journal: the journal's folder, from which everything that the backup contains is deleted.
        on_progress: called with the share copied so far.

    Raises:
        StoreError: the folder already exists, there is no room, or the store or its copy is damaged.
    """
    if folder.exists():
        raise StoreError(f"{folder} already exists: name a new folder, for example with the date in its name")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    began_ns = time.time_ns()
    try:
        partial.mkdir(mode=0o700, parents=True)
        kept = copy_weights(partial, checkpoints, versions)
        spans, used = _copy_database(state_dir / STORE, partial, on_progress)
        if (own := state_dir / DAEMON_ID).exists():
            shutil.copyfile(own, partial / DAEMON_ID)
        backup = Backup(folder, began_ns, spans, used, kept)
        manifest = {"at_ns": began_ns, "spans": spans, "checkpoints": kept}
        (partial / MANIFEST).write_text(json.dumps(manifest) + "\n")
        partial.rename(folder)
    except sqlite3.Error as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StoreError(f"the store {state_dir / STORE} could not be copied: {error}") from error
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StoreError(f"{folder} cannot be written: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if journal is not None:
        delete_before(journal, began_ns)
    return backup


def _copy_database(path: Path, folder: Path, on_progress: Callable[[float], None]) -> tuple[int, int]:
    """Copy a store's database into a folder and check the copy.

    Returns:
        The number of its spans, and the bytes in use.

    Raises:
        StoreError: there is no room, or the copy is damaged.
        sqlite3.Error: the database cannot be read.
    """
    copy = folder / f"{STORE}.partial"
    with read_only(path) as source:
        size = measure(source, path)
        enough_room(folder, size.total, "a backup")
        with closing(sqlite3.connect(copy)) as target:
            # The snapshot is held open, so that writes meanwhile do not restart the copy.
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(
                target,
                pages=_PAGES,
                progress=lambda _, left, total: on_progress(1 - left / max(1, total)),
                sleep=0,
            )
            target.execute("PRAGMA journal_mode=DELETE")
            (verdict,) = target.execute("PRAGMA quick_check(1)").fetchone()
            (spans,) = target.execute("SELECT count(*) FROM spans").fetchone()
    if verdict != "ok":
        raise StoreError(f"the store {path} is damaged ({verdict}): `lightning-trainer store repair` first")
    put_in_place(copy, folder / STORE)
    return spans, size.used
