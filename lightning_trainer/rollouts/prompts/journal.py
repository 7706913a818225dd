"""A search's journal: what its attempts earned and which texts were proposed, so that an interrupted one goes on.

A search is its seed's: started again with the same tasks and settings it asks for the same in the same order, and gets
from the journal what it got before. So nothing else of it has to be kept, and a search with more attempts goes on where
one with fewer has ended.
"""

import json
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.journal import JournalFile


class OtherSearchError(LightningError):
    """A journal's search is not the one that is to go on."""


class Journal:
    """Thread-safe. Without a path nothing is known and nothing is written.

    Args:
        search: what the search is, equal for those that may go on from each other.

    Raises:
        LightningError: the file is another search's, another process writes it, or it cannot be read or written.
    """

    def __init__(self, path: Path | None, search: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._known: dict[str, deque[Any]] = {}
        self._file: JournalFile | None = None
        if path is None:
            return
        head = {"key": ["search"], "said": search}
        other = "other tasks, prompts, settings or program"
        self._file = JournalFile(path, head, kind="search", other=other, is_same=head.__eq__)
        for entry in self._file.entries:
            with suppress(KeyError):  # a line of something else
                self._known.setdefault(_text(entry["key"]), deque()).append(entry["said"])

    def take(self, key: list[Any]) -> Any:
        """Return what was said under the key, the first time it is asked for the first of several; None if nothing."""
        with self._lock:
            said = self._known.get(_text(key))
            return said.popleft() if said else None

    def write(self, key: list[Any], said: Any) -> None:
        """Keep what was said.

        Raises:
            LightningError: it cannot be written.
        """
        if self._file is not None:
            self._file.append({"key": key, "said": said})

    def begin_anew(self) -> None:
        """Forget everything: nothing can be made of it, and the search that comes next must not find it.

        Raises:
            LightningError: the file cannot be written.
        """
        with self._lock:
            self._known.clear()
        if self._file is not None:
            self._file.begin_anew()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _text(key: list[Any]) -> str:
    return json.dumps(key, default=str)
