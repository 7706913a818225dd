"""Restoring a backup: its database and checkpoints are put in place, and the journal's later spans are added."""

import json
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.store.media.exchange import exchange
from lightning_trainer.store.media.storing import insert_with_media
from lightning_trainer.store.schema import migrate
from lightning_trainer.store.upkeep import journal as journal_files
from lightning_trainer.store.upkeep.backup import MANIFEST
from lightning_trainer.store.upkeep.files import STORE, enough_room, held, put_in_place, set_aside


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put in place."""

    at_ns: int
    """When the backup was taken."""
    spans: int
    from_journal: int
    """Number of spans that came after it."""
    aside: Path | None
    """The new location of what was there before."""
    problems: Sequence[str]


def restore(
    backup: Path, state_dir: Path, *, journal: Path | None = None, limits: StoreConfig | None = None
) -> Restored:
    """Replace a state folder's store with a backup; the previous one is set aside.

    Raises:
        StoreError: it is not a backup, it is damaged, a daemon has the state folder, or the folder cannot be written.
    """
    manifest = _manifest(backup)
    store = state_dir / STORE
    with held(store):
        enough_room(state_dir, (backup / STORE).stat().st_size, "restoring")
        partial = store.with_name(f"{STORE}.restoring")
        shutil.copyfile(backup / STORE, partial)
        problems: list[str] = []
        try:
            with closing(sqlite3.connect(partial, isolation_level=None)) as connection:
                (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    raise StoreError(
                        f"the backup {backup} is damaged ({verdict}); what is in {state_dir} stays as it is"
                    )
                migrate(connection, where=str(backup))
                from_journal = _replay(connection, journal, problems, limits)
                (spans,) = connection.execute("SELECT count(*) FROM spans").fetchone()
                newest = dict(
                    connection.execute("SELECT policy, max(version) FROM versions GROUP BY policy").fetchall()
                )
        except sqlite3.Error as error:
            partial.unlink(missing_ok=True)
            raise StoreError(f"the backup {backup} cannot be read ({error}); {state_dir} stays as it is") from error
        except StoreError:
            partial.unlink(missing_ok=True)
            raise
        aside = set_aside(store, "before-restore") if store.exists() else None
        put_in_place(partial, store)
        put_checkpoints(backup / "checkpoints", state_dir / "checkpoints")
        _forget_later(state_dir, newest)
    return Restored(manifest["at_ns"], spans, from_journal, aside, problems)


def _manifest(backup: Path) -> dict:
    try:
        manifest = json.loads((backup / MANIFEST).read_text())
        return {"at_ns": int(manifest["at_ns"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{backup} is not a backup ({error}): name a folder that `lightning-trainer store backup` has made"
        ) from error


def _replay(
    connection: sqlite3.Connection, folder: Path | None, problems: list[str], limits: StoreConfig | None
) -> int:
    if folder is None:
        return 0
    new = 0
    for spans in journal_files.read(folder, problems):
        connection.execute("BEGIN IMMEDIATE")
        new += len(insert_with_media(connection, exchange(spans), limits or StoreConfig()))
        connection.execute("COMMIT")
    return new


def put_checkpoints(of_backup: Path, folder: Path) -> None:
    """Put the backup's checkpoints in place; those of steps not in the backup are removed at the next start."""
    for checkpoint in of_backup.glob("*/step-*"):
        place = folder / checkpoint.parent.name / checkpoint.name
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copytree(checkpoint, place)


def _forget_later(state_dir: Path, newest: dict[str, int]) -> None:
    """Remove stored weights of versions whose numbers will be reused, and set the metrics files aside, which are
    rebuilt from the store."""
    for version in state_dir.glob("versions/*/v*"):
        number = version.name.removeprefix("v")
        if number.isdigit() and int(number) > newest.get(version.parent.name, -1):
            shutil.rmtree(version, ignore_errors=True)
    for policy, last in newest.items():
        for checkpoint in (state_dir / "checkpoints" / policy).glob("step-*"):
            number = checkpoint.name.removeprefix("step-")
            if number.isdigit() and int(number) > last:
                shutil.rmtree(checkpoint, ignore_errors=True)
    for lines in state_dir.glob("metrics/*.jsonl"):
        lines.replace(lines.with_suffix(".jsonl.before-restore"))
