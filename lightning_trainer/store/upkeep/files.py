"""The files of a store and of its backups: put in place atomically, and readable only by their owner."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from lightning_trainer.errors import StoreError
from lightning_trainer.store.sqlite import FileLock

STORE = "lightning.sqlite"
DAEMON_ID = "daemon-id"
"""The file next to a store with the id of its daemon, for which the spans in clients' spools wait."""
PUBLICATION = "publication.json"
"""The file next to a version's weights with the publication that they were proven with."""
_BESIDE = ("", "-wal", "-shm")


@contextmanager
def held(store: Path) -> Iterator[None]:
    """Lock a store that no daemon has open.

    Raises:
        StoreError: a daemon has it; or a file cannot be written.
    """
    try:
        folder, at = store.parent, store.with_name(store.name + ".lock")
        is_new = not folder.exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(at, f"the store {store}")
        leave_to_owner(*((folder, folder.parent) if is_new else (at, folder)))
    except OSError as error:
        raise StoreError(f"the store {store} cannot be held: {error.strerror}") from error
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the store {store}: {error.strerror or error}: {error.filename or ''}".rstrip(": ")
        ) from error
    finally:
        lock.release()


def set_aside(store: Path, why: str) -> Path:
    """Rename a store with its log, and return its new name."""
    aside = store.with_name(f"{store.name}.{why}-{time.strftime('%Y%m%d-%H%M%S')}")
    for suffix in _BESIDE:
        beside = store.with_name(store.name + suffix)
        if beside.exists():
            os.replace(beside, aside.with_name(aside.name + suffix))
    return aside


def set_aside_before(store: Path) -> list[Path]:
    """Return the files of stores that were set aside, oldest first."""
    found = [*store.parent.glob(f"{store.name}.before-restore-*"), *store.parent.glob(f"{store.name}.damaged-*")]
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, file.name))


def aside_of(folder: Path) -> Path:
    """Return the next free name (POLICY~1) for what is set aside from a policy's folder; no policy has such a name."""
    names = (folder.with_name(f"{folder.name}~{number}") for number in count(1))
    return next(path for path in names if not path.exists())


def put_in_place(partial: Path, final: Path) -> None:
    """Rename a finished file to its final name, durably."""
    os.chmod(partial, 0o600)
    descriptor = os.open(partial, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    for suffix in ("-wal", "-shm"):
        partial.with_name(partial.name + suffix).unlink(missing_ok=True)
        final.with_name(final.name + suffix).unlink(missing_ok=True)
    leave_to_owner(partial, final.parent)
    os.replace(partial, final)
    folder = os.open(final.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def leave_to_owner(made: Path, folder: Path) -> None:
    """As root, give a new file or folder the owner of the folder that it goes to: otherwise, a daemon that runs as that
    user could not open it.

    Args:
        made: a file, or a folder with everything in it.
    """
    if os.geteuid() != 0:
        return
    owner = folder.stat()
    for path in (made, *made.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def enough_room(folder: Path, needed: int, what: str) -> None:
    """Check the free space of a folder's disk. Raises StoreError: there is less than needed."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StoreError(
            f"{what} takes {needed / 2**20:,.0f} MiB in {folder} and {free / 2**20:,.0f} MiB are free: make room first"
        )
