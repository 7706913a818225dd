"""``daemon.json`` in the state folder tells where its daemon is, if one runs; ``daemon.lock`` lets only one run."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from lightning_trainer.daemon.state_folder import anothers
from lightning_trainer.errors import StoreError


@contextlib.contextmanager
def alone_in(state_dir: Path) -> Iterator[None]:
    """Hold the state folder as its only daemon, even if other daemons share its store.

    The lock file is never deleted: if it were deleted when its daemon ends, as ``daemon.json`` is, the next daemon
    could hold the lock of a deleted file.

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
    """Keep ``daemon.json``, which tells where the running daemon is, until the daemon ends.

    If the daemon is killed, the file stays but is no longer locked.

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
    """Return the URL in that ``daemon.json``; None if no daemon runs, even if a killed one left the file behind.

    The file's lock decides, not the process id in it: the kernel drops a lock however its process ends, while in a
    container another process soon has the same id.

    Raises:
        StoreError: the folder is another user's, so this user cannot tell.
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
