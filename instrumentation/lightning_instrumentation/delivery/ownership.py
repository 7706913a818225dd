"""Who owns a spool file: the process that holds an exclusive ``flock`` on the lock file next to it.

The kernel releases the lock when its holder dies, however it dies, so an orphan is a spool whose lock can be taken.
There is a separate lock file because the files of a spool come and go.
"""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing can be owned, spans are kept in memory
    fcntl = None


class NoFileLocksError(OSError):
    """The platform (Windows) has no file locks, so spans cannot wait in any folder."""


class Ownership:
    """The lock on a spool that this process holds."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Ownership | None:
        """Take the lock and return its ownership; None if another process has it.

        Raises:
            OSError: the lock file cannot be created.
            NoFileLocksError: the platform has no file locks.
        """
        if fcntl is None:
            raise NoFileLocksError("this platform has no file locks")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return cls(path, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass  # held by another process, or its owner deleted it while we opened it
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def move_to(self, path: Path) -> None:
        """Rename the lock file. Raises OSError if it cannot be moved; the lock is then held as before."""
        os.rename(self.path, path)
        self.path = path

    def release(self, *, delete: bool = False) -> None:
        """Release the lock, and delete its file if asked to; idempotent."""
        if self._descriptor < 0:
            return
        if delete:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def forget(self) -> None:
        """Close our copy of the descriptor in a forked child; the parent still holds the lock."""
        os.close(self._descriptor)
        self._descriptor = -1
