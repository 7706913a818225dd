"""A search's journal: what its attempts earned and which texts were proposed, so that an interrupted one goes on.

A search is its seed's: started again with the same tasks and settings it asks for the same in the same order, and gets
from the journal what it got before. So nothing else of it has to be kept, and a search with more attempts goes on where
one with fewer has ended. One JSON object a line; the last may be cut off by whatever ended the process.
"""

import json
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from lightning_trainer.errors import LightningError

try:
    import fcntl
except ImportError:  # Windows: nobody is kept from starting the same search twice
    fcntl = None


class Journal:
    """Thread-safe. Without a path nothing is known and nothing is written.

    Args:
        search: what the search is, equal for those that may go on from each other.

    Raises:
        LightningError: the file is another search's, another process writes it, or it cannot be read or written.
    """

    def __init__(self, path: Path | None, search: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, deque[Any]] = {}
        self._file: IO[bytes] | None = None
        if path is None:
            return
        try:
            self._file = path.open("a+b")
            self._open(self._file, search)
        except OSError as error:
            self.close()
            raise LightningError(f"the journal {path} cannot be used: {error}") from error
        except BaseException:
            self.close()
            raise

    def _open(self, file: IO[bytes], search: str) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LightningError(
                    f"another search is writing the journal {self._path}; wait for its end, or name another file"
                ) from error
        file.seek(0)
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if content and not whole.startswith(_line(["search"], search)):
            raise LightningError(
                f"the journal {self._path} is of another search (other tasks, prompts, settings or program), or of "
                "none; name another file to begin anew"
            )
        with suppress(ValueError, KeyError, TypeError):  # what follows a line that is none is made again
            for line in whole.splitlines():
                entry = json.loads(line)
                self._known.setdefault(json.dumps(entry["key"]), deque()).append(entry["said"])
        file.truncate(len(whole))
        if not content:
            self.write(["search"], search)

    def take(self, key: list[Any]) -> Any:
        """Return what was said under the key, the first time it is asked for the first of several; None if nothing."""
        with self._lock:
            said = self._known.get(json.dumps(key))
            return said.popleft() if said else None

    def write(self, key: list[Any], said: Any) -> None:
        """Keep what was said.

        Raises:
            LightningError: it cannot be written.
        """
        with self._lock:
            if self._file is None:
                return
            try:
                self._file.write(_line(key, said))
                self._file.flush()
            except OSError as error:
                raise LightningError(f"the journal {self._path} cannot be written: {error}") from error

    def begin_anew(self) -> None:
        """Forget everything: nothing can be made of it, and the search that comes next must not find it.

        Raises:
            LightningError: the file cannot be written.
        """
        with self._lock:
            self._known.clear()
            if self._file is None:
                return
            try:
                self._file.truncate(0)
            except OSError as error:
                raise LightningError(f"the journal {self._path} cannot be written: {error}") from error

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


def _line(key: list[Any], said: Any) -> bytes:
    return json.dumps({"key": key, "said": said}).encode() + b"\n"
