"""``daemon.json`` in the state folder: where its daemon is, if one runs; ``daemon.lock``: there is one at most."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from lightning_trainer.daemon.state_folder import anothers
from lightning_trainer.errors import StoreError


@contextlib.contextmanager
def alone_in(state_dir: Path) -> Iterator[None]:
    """Hold the state folder as its only daemon, also where others share its store.

    The lock is a file that stays: on one that ends with its daemon, as ``daemon.json`` does, the next daemon could hold
    what is deleted.

    Raises:
        StoreError: another daemon has the folder, or it cannot be written.
    """
    from lightning_trainer.store.sqlite import FileLock  # commands look for the daemon here, and need no store for it

    path = state_dir / "daemon.lock"
    try:
        lock = FileLock(path, f"the state folder {state_dir}")
    except OSError as error:
        raise StoreError(f"{path} cannot be locked: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def announced(path: Path, url: str) -> Iterator[None]:
    """``daemon.json``: where a running daemon is; gone when it is, or no longer locked if it was killed.

    Raises:
        StoreError: it cannot be written.
    """
    import fcntl

    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)
            file.truncate(0)
            file.write(json.dumps({"pid": os.getpid(), "url": url}))
            file.flush()
        except OSError as error:
            raise StoreError(f"{path}, by which the daemon is found, cannot be written: {error.strerror}") from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def announced_url(path: Path) -> str | None:
    """Return where the daemon of that ``daemon.json`` is, None where none runs; one that was killed left it behind.

    The kernel drops a lock however its process ends, and the number of a process is soon another's in a container.

    Raises:
        StoreError: the folder is another user's, so nobody can tell.
    """
    try:
        import fcntl
    except ImportError:  # Windows, where no daemon runs
        return None
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        pass
    except PermissionError as error:
        raise StoreError(anothers(path.parent)) from error
    except OSError:
        return None
    try:
        return json.loads(path.read_text())["url"]
    except (OSError, ValueError, KeyError):
        return None
