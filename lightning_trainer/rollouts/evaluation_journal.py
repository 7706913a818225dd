"""An evaluation's journal: what its attempts came to, so that an interrupted one goes on and its mean is of all tasks.

The daemon could tell how many attempts at a task have ended, and neither by which version nor with what reward. So the
evaluation writes that down itself: one JSON object a line, the first about the evaluation. The last line may be cut off
by whatever ended the process.
"""

import hashlib
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import AttemptEnded, Task

try:
    import fcntl
except ImportError:  # Windows: nobody is kept from starting the same evaluation twice
    fcntl = None

Versions = Mapping[str, int | None]
"""Each policy's live version; None: there is none, or it is not known."""

_log = logging.getLogger(__name__)


class EvaluationJournal:
    """Attempts of one evaluation, with one version of each policy. Thread-safe.

    An attempt counts if it ended without an error, at a task of the same content, while the versions were those that
    the evaluation began with.

    Args:
        path: of the file, which need not be there.
        evaluation: what is evaluated and by what, equal for those that may go on from each other.
        versions: returns those that are live now.

    Raises:
        LightningError: the file is another evaluation's, another process writes it, or it cannot be read or written.
    """

    def __init__(self, path: Path, evaluation: Mapping[str, Any], versions: Callable[[], Versions]) -> None:
        self._path = path
        self._versions = versions
        self._began_with = dict(versions())
        self._lock = threading.Lock()
        self._known: dict[str, deque[AttemptEnded]] = {}
        head = {"evaluation": _comparable(evaluation), "versions": self._began_with}
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._open(head)
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise

    def _open(self, head: dict[str, Any]) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LightningError(
                    f"another evaluation is writing the journal {self._path}; wait for its end, or name another file"
                ) from None
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.splitlines()
        before: Any = None
        with suppress(ValueError):
            before = json.loads(lines[0]) if lines else None
        if content and (not isinstance(before, dict) or before.get("evaluation") != head["evaluation"]):
            raise LightningError(
                f"the journal {self._path} is of another evaluation (another name, run, agent or its settings), or of "
                "none; name another file to begin anew"
            )
        if content and before.get("versions") != self._began_with:
            _log.warning(
                "the journal %s is of %s, and %s answers now: every task is tried anew",
                self._path,
                _told(before.get("versions")),
                _told(self._began_with),
            )
            lines, whole = [], b""
        with suppress(ValueError, KeyError, TypeError):  # what follows a line that is none is made again
            for line in lines[1:]:
                entry = json.loads(line)
                self._known.setdefault(entry["task"], deque()).append(AttemptEnded(**entry["ended"]))
        self._file.truncate(len(whole))
        if not whole:
            self._write(head)

    def take(self, task: Task) -> AttemptEnded | None:
        """Return the first attempt at the task that was not taken yet; None if there is none."""
        known = self._known.get(_key(task))
        return known.popleft() if known else None

    def keep(self, task: Task, ended: AttemptEnded) -> None:
        """Write down an attempt, unless it failed or a version is another by now.

        Raises:
            LightningError: it cannot be written, or the daemon cannot be asked for the versions.
        """
        if ended.error is not None or ended.stage == "retried" or dict(self._versions()) != self._began_with:
            return
        try:
            self._write({"task": _key(task), "ended": asdict(ended)})
        except OSError as error:
            raise LightningError(f"the journal {self._path} cannot be written: {error}") from error

    def _write(self, entry: dict[str, Any]) -> None:
        with self._lock:
            if self._file.closed:  # what goes on after an interrupt does not count
                return
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()

    def _unusable(self, error: OSError) -> LightningError:
        return LightningError(f"the journal {self._path} cannot be used: {error}")

    def close(self) -> None:
        with self._lock, suppress(OSError):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _key(task: Task) -> str:
    """Return what is equal for tasks of one id and content: files of tasks may count theirs alike."""
    content = [getattr(task, name, None) for name in ("fields", "input")]
    return f"{task.id} {hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode()).hexdigest()[:16]}"


def _comparable(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return it as it is when it was written and read again."""
    return json.loads(json.dumps(dict(evaluation), sort_keys=True, default=repr))


def _told(versions: object) -> str:
    if not isinstance(versions, Mapping):
        return "an unknown version"
    return ", ".join(policy if number is None else f"{policy}@v{number}" for policy, number in versions.items())
