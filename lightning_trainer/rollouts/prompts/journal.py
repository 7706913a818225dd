"""A search's journal: the rewards of its attempts and the proposed texts, so that an interrupted search can continue.

The seed determines a search: started again with the same tasks and settings, it asks for the same things in the same
order, and gets from the journal what it got before. So nothing else of it has to be kept, and a search with more
attempts continues where one with fewer ended.
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
    """The journal is of another search than the one that should continue."""


class Journal:
    """The journal of a search; thread-safe. Without a path, nothing is known and nothing is written.

    Args:
        search: describes the search; equal for searches that may continue from each other's journals.

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
            with suppress(KeyError):  # the line is not an entry
                self._known.setdefault(_text(entry["key"]), deque()).append(entry["said"])

    def take(self, key: list[Any]) -> Any:
        """Take the first entry that is left under the key, and return what it says; None if there is none."""
        with self._lock:
            said = self._known.get(_text(key))
            return said.popleft() if said else None

    def write(self, key: list[Any], said: Any) -> None:
        """Keep an entry under a key.

        Raises:
            LightningError: the entry cannot be written.
        """
        if self._file is not None:
            self._file.append({"key": key, "said": said})

    def begin_anew(self) -> None:
        """Forget everything: it is of no use, and the next search must not find it.

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
