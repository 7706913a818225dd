"""Restoring a backup: its database, checkpoints, and weights are put in place, and the journal's later spans added."""

import json
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.store.media.exchange import exchange
from lightning_trainer.store.media.storing import insert_with_media
from lightning_trainer.store.schema import migrate
from lightning_trainer.store.tables import feedback
from lightning_trainer.store.upkeep import journal as journal_files
from lightning_trainer.store.upkeep.backup import MANIFEST
from lightning_trainer.store.upkeep.checkpoints import Checksums, copied_beside, select_checksums, set_metrics_aside
from lightning_trainer.store.upkeep.files import DAEMON_ID, STORE, held, put_in_place, set_aside


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put in place."""

    at_ns: int
    """When the backup was taken."""
    spans: int
    from_journal: int
    """Number of spans that the journal added."""
    aside: Path | None
    """The new location of the previous store; None if there was none, or it was replaced in its database."""
    weights_aside: Sequence[Path]
    """The new locations of checkpoints and versions' weights that are not the backup's."""
    problems: Sequence[str]


def restore(
    backup: Path,
    state_dir: Path,
    *,
    shared_dir: Path | None = None,
    journal: Path | None = None,
    limits: StoreConfig | None = None,
) -> Restored:
    """Replace a state folder's store with a backup; the previous store is set aside, and so are all checkpoints and
    weights that are not the backup's.

    Args:
        shared_dir: the folder of checkpoints and versions; by default the state folder.

    Raises:
        StoreError: it is not a backup, it is damaged, a daemon has the state folder, there is no room, or the folder
            cannot be written. Either nothing has changed, or the error says where the previous store is.
    """
    manifest, shared_dir = read_manifest(backup), shared_dir or state_dir
    store = state_dir / STORE
    partial = store.with_name(f"{STORE}.restoring")
    with (
        held(store),
        copied_beside(backup, shared_dir, besides=(backup / STORE).stat().st_size) as put_weights,
    ):
        try:
            _remove(partial)  # left by a restore that was killed
            shutil.copyfile(backup / STORE, partial)
            made = _brought_up_to_date(partial, journal, replay_limits(limits), manifest["at_ns"], where=str(backup))
        except BaseException as error:
            _remove(partial)
            if not isinstance(error, sqlite3.Error):
                raise
            raise StoreError(f"the backup {backup} cannot be read ({error}); {state_dir} stays as it is") from error
        aside = set_aside(store, "before-restore") if store.exists() else None
        try:
            put_in_place(partial, store)
            weights_aside = put_weights(made.checksums)
            _put_id(backup / DAEMON_ID, state_dir / DAEMON_ID, made.problems)
            set_metrics_aside(state_dir)
        except OSError as error:
            before = "" if aside is None else f"; what was there before is {aside}"
            raise StoreError(f"only a part of the backup {backup} is in place ({error}){before}") from error
    return Restored(manifest["at_ns"], made.spans, made.from_journal, aside, weights_aside, made.problems)


@dataclass(slots=True)
class _Made:
    """A database to put in place."""

    spans: int
    from_journal: int
    checksums: Checksums
    problems: list[str]


def _brought_up_to_date(copy: Path, journal: Path | None, limits: StoreConfig, at_ns: int, *, where: str) -> _Made:
    """Check the copy of a backup's database, migrate it, and add the journal."""
    problems: list[str] = []
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {verdict}")
        migrate(connection, where=where)
        earlier, _ = feedback.newest(connection)
        from_journal = _replay(connection, journal, problems, limits)
        feedback.date_back(connection, earlier, at_ns)
        (spans,) = connection.execute("SELECT count(*) FROM spans").fetchone()
        return _Made(spans, from_journal, select_checksums(connection), problems)


def replay_limits(limits: StoreConfig | None) -> StoreConfig:
    """Return the limits for the spans of a journal, without ``media_size``: the journal's images are the newest, and
    older ones make room for them as soon as a daemon writes."""
    return (limits or StoreConfig()).model_copy(update={"media_size": None})


def read_manifest(backup: Path) -> dict[str, Any]:
    """Return a backup's manifest; ``at_ns`` is when it was taken. Raises StoreError: it is not a backup."""
    try:
        manifest = json.loads((backup / MANIFEST).read_text())
        return {**manifest, "at_ns": int(manifest["at_ns"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{backup} is not a backup ({error}): name a folder that `lightning-trainer store backup` has made"
        ) from error


def _replay(connection: sqlite3.Connection, folder: Path | None, problems: list[str], limits: StoreConfig) -> int:
    if folder is None:
        return 0
    new = 0
    for spans in journal_files.read(folder, problems):
        connection.execute("BEGIN IMMEDIATE")
        new += len(insert_with_media(connection, exchange(spans), limits))
        connection.execute("COMMIT")
    return new


def _put_id(kept: Path, own: Path, problems: list[str]) -> None:
    """Give the daemon here the id of the backed-up one, unless it already has its own: spans wait for either id."""
    if not kept.exists():
        return
    if not own.exists():
        partial = own.with_name(f"{own.name}.restoring")
        shutil.copyfile(kept, partial)
        put_in_place(partial, own)
    elif own.read_bytes() != kept.read_bytes():
        problems.append(
            f"{own} stays as it is, and the backup is of another daemon: programs that record for that one, and what "
            f"waits in their spools, find it again only once {kept} is copied there"
        )


def _remove(partial: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        partial.with_name(partial.name + suffix).unlink(missing_ok=True)
