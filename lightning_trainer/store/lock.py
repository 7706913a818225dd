"""One daemon per store: an advisory ``flock`` on a file next to it; the kernel releases it however the process ends."""

import fcntl
import os
from pathlib import Path

from lightning_trainer.errors import StoreError


class FileLock:
    """Held from construction until :meth:`release`.

    Raises:
        StoreError: another process holds it; the message names its process id.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreError(
                f"the store {path.with_suffix('')} is in use by another daemon (process {holder}): "
                "stop it, or choose another state_dir"
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, str(os.getpid()).encode())

    def release(self) -> None:
        # The file stays: unlinking it would let two daemons each lock a file of the same name.
        os.close(self._descriptor)
