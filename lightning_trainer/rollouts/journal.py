"""A file from which what was interrupted goes on: one JSON object a line, the first about what it is a journal of.

The last line may be cut off by whatever ended the process, and is dropped. A line that cannot be read otherwise, as a
machine may leave one that lost its power, is left out: those after it count.
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
except ImportError:  # Windows: nobody is kept from starting the same twice
    fcntl = None

_log = logging.getLogger(__name__)


class JournalFile:
    """An open journal, which no other process writes. Thread-safe.

    Args:
        path: of the file, which need not be there.
        head: its first line.
        kind: what it is a journal of, in sentences: ``search``.
        other: what makes another of the kind, in sentences.
        is_same: whether a file's first line is of what may go on from it.

    Raises:
        LightningError: the file is another's, another process writes it, or it cannot be read or written.
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
        """The first line that was there; ``head`` in a new file."""
        self.entries: list[Mapping[str, Any]] = []
        """What was written before."""
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
        """Write a line, with the text of what is not JSON, as a task's id may be; nothing once it is closed, since what
        goes on after an interrupt does not count.

        Raises:
            LightningError: it cannot be written.
        """
        with self._lock:
            if self._file.closed:
                return
            try:
                self._write(entry)
            except OSError as error:
                raise self._unwritable(error) from error

    def begin_anew(self) -> None:
        """Leave nothing but the first line.

        Raises:
            LightningError: it cannot be written.
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
