"""An evaluation's journal: its attempts' results, so that an interrupted one continues and its mean is of all tasks.

The daemon could tell how many attempts at a task have ended, but not by which version or with what reward. So the
evaluation itself writes this down.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import AttemptEnded, Task
from lightning_trainer.rollouts.journal import JournalFile
from lightning_trainer.rollouts.task_file import comparable, content_key

Versions = Mapping[str, int | None]
"""Each policy's live version; None: there is none, or it is not known."""

_log = logging.getLogger(__name__)


class EvaluationJournal:
    """Attempts of one evaluation, with one version of each policy. Thread-safe.

    An attempt counts if it ended without an error, at a task of the same content, while the versions were those that
    the evaluation began with.

    Args:
        path: path of the file, which need not exist.
        evaluation: describes the evaluation; equal for evaluations that may continue from each other's journals.
        versions: returns the versions that are live now.

    Raises:
        LightningError: the file is another evaluation's, another process writes it, or it cannot be read or written.
    """

    def __init__(self, path: Path, evaluation: Mapping[str, Any], versions: Callable[[], Versions]) -> None:
        self._path = path
        self._versions = versions
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._broken = False
        self._began_with = dict(versions())
        self._known: dict[str, deque[AttemptEnded]] = {}
        head = {"evaluation": {name: comparable(one) for name, one in evaluation.items()}, "versions": self._began_with}
        other = "another name, run, agent or its settings"
        self._file = JournalFile(
            path,
            head,
            kind="evaluation",
            other=other,
            is_same=lambda before: before.get("evaluation") == head["evaluation"],
        )
        if (of := self._file.before.get("versions")) != self._began_with:
            _log.warning(
                "the journal %s is of %s, and %s answers now: every task is tried anew",
                path,
                _told(of),
                _told(self._began_with),
            )
            self._file.begin_anew()
        for entry in self._file.entries:
            with suppress(KeyError, TypeError):  # the line is not an attempt
                self._known.setdefault(entry["task"], deque()).append(AttemptEnded(**entry["ended"]))

    def take(self, task: Task) -> AttemptEnded | None:
        """Return the first attempt at the task that was not taken yet; None if there is none."""
        known = self._known.get(content_key(task))
        return replace(known.popleft(), task_id=task.id) if known else None  # the task's id may not be text

    def ids_left(self) -> set[str]:
        """Return the ids of tasks with attempts that were not taken."""
        return {key.rpartition(" ")[0] for key, left in self._known.items() if left}

    def keep(self, task: Task, ended: AttemptEnded) -> None:
        """Write down an attempt, unless it failed or a live version has changed since the evaluation began.

        If an attempt cannot be kept, this is logged once and does not end the evaluation: the attempt itself was made.
        """
        if ended.error is not None or ended.stage == "retried" or self._broken:
            return
        try:
            if (now := dict(self._versions())) == self._began_with:
                self._file.append({"task": content_key(task), "ended": asdict(ended)})
                return
        except LightningError as error:
            self._broken = True  # otherwise each attempt would wait for a daemon that is down
            self._say("what ends from here on is not in the journal %s: %s", self._path, error)
            return
        self._say(
            "the journal %s is of %s, and %s answers by now: its attempts are not kept, and the results are of several "
            "versions",
            self._path,
            _told(self._began_with),
            _told(now),
        )

    def _say(self, line: str, *words: object) -> None:
        with self._lock:
            first = line not in self._said
            self._said.add(line)
        if first:
            _log.warning(line, *words)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _told(versions: object) -> str:
    if not isinstance(versions, Mapping):
        return "an unknown version"
    return ", ".join(policy if number is None else f"{policy}@v{number}" for policy, number in versions.items())
