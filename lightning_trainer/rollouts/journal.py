"""A file from which interrupted work continues: one JSON object per line, the first of which describes the work.

The last line may have been cut off when the process ended, and is then dropped. Any other line that cannot be read, as
after a power failure, is left out; the lines after it count.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from lightning_trainer.errors import LightningError

try:
    import fcntl
except ImportError:  # Windows: nothing prevents two processes from writing one journal
    fcntl = None

_log = logging.getLogger(__name__)


class JournalFile:
    """An open journal, which no other process writes. Thread-safe.

    Args:
        path: path of the file, which need not exist.
        head: the first line of a new file.
        kind: the kind of work, for messages: ``search``.
        other: the properties in which another work of that kind differs, for messages.
        is_same: whether the work may continue from a file with this first line.

    Raises:
        LightningError: the file belongs to other work, another process writes it, or it cannot be read or written.
    """

    def __init__(
        self,
        path: Path,
        head: Mapping[str, Any],
        *,
        kind: str,
        other: str,
        is_same: Callable[[Mapping[str, Any]], bool],
    ) -> None:
        self._path = path
        self._head = head
        self._kind = kind
        self._lock = threading.Lock()
        self.before: Mapping[str, Any] = head
        """The first line that the file had; ``head`` in a new file."""
        self.entries: list[Mapping[str, Any]] = []
        """The entries that the file had."""
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise LightningError(f"the journal {path} cannot be used: {error}") from error
        try:
            self._open(self._file, is_same, other)
        except OSError as error:
            self.close()
            raise LightningError(f"the journal {path} cannot be used: {error}") from error
        except BaseException:
            self.close()
            raise

    def _open(self, file: IO[bytes], is_same: Callable[[Mapping[str, Any]], bool], other: str) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LightningError(
                    f"another {self._kind} is writing the journal {self._path}; wait for its end, or name another file"
                ) from None
        file.seek(0)
        content = file.read()
        if not content:
            self._write(self._head)
            return
        whole = content[: content.rfind(b"\n") + 1]
        first, *lines = whole.splitlines() or [b""]
        if (before := next(_read([first]), None)) is None or not is_same(before):
            raise LightningError(
                f"the journal {self._path} is of another {self._kind} ({other}), or of none; name another file to "
                "begin anew"
            )
        self.before, self.entries = before, list(_read(lines))
        if left_out := len(lines) - len(self.entries):
            _log.warning("lines of the journal %s that cannot be read are left out: %d", self._path, left_out)
        file.truncate(len(whole))

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write a line; values that are not JSON, such as some tasks' ids, are written as text. Once the journal is
        closed, nothing is written, since attempts that continue after an interrupt do not count.

        Raises:
            LightningError: the line cannot be written.
        """
        with self._lock:
            if self._file.closed:
                return
            try:
                self._write(entry)
            except OSError as error:
                raise self._unwritable(error) from error

    def begin_anew(self) -> None:
        """Empty the file, and write ``head`` as its first line.

        Raises:
            LightningError: the file cannot be written.
        """
        with self._lock:
            self.entries = []
            try:
                self._file.truncate(0)
                self._write(self._head)
            except OSError as error:
                raise self._unwritable(error) from error

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, default=str).encode() + b"\n")
        self._file.flush()

    def _unwritable(self, error: OSError) -> LightningError:
        return LightningError(f"the journal {self._path} cannot be written: {error}")

    def close(self) -> None:
        """Close the file."""
        with self._lock, suppress(OSError):
            self._file.close()


def _read(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(ValueError, RecursionError):
            if isinstance(entry := json.loads(line), dict):
                yield entry
