"""Tasks in a file: JSON objects, one per line, or rows of Parquet. The content is up to the agent; an ``id`` names it.

Without an id, a digest of the content names the task: the name stays the same if the rest of the file is edited, so the
task is still compared with itself. A mapping that a program gives as a task is named in the same way.
"""

import hashlib
import io
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.errors import LightningError, MissingExtraError

_PARQUET = b"PAR1"
"""How Parquet files begin: a pipe has no name that would tell."""
_SHOWN = 80
"""How many characters of a task an error shows."""
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
"""An object's address in its ``repr``, which is another one at each start."""
_OF_TABLES = ", as df.to_dict('records') makes of a table's rows"


@dataclass(frozen=True, slots=True)
class FileTask:
    """One task of a file."""

    id: str
    fields: Mapping[str, Any]
    """The whole object, as written in the file."""

    @property
    def input(self) -> Mapping[str, Any]:
        """Return the rollout's input to record."""
        return dict(self.fields)


class RowTask(dict[str, Any]):
    """A row of a dataset as a task: a dict with the attributes of a task.

    Raises:
        LightningError: the row has no ``id``, and its content cannot name it, because it is not JSON.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        try:
            self.id = _name_by_content(self) if self.get("id") is None else str(self["id"])
        except (TypeError, ValueError) as error:
            raise LightningError(
                f"the task {repr(row)[:_SHOWN]} has no 'id', and is not JSON, whose digest would name it ({error}); "
                "give it an id"
            ) from None

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the row, for a command to read."""
        return self

    @property
    def input(self) -> Mapping[str, Any]:
        """Return the rollout's input to record."""
        return dict(self)


def task_of(given: Any) -> Any:
    """Return the task that a mapping stands for; anything with an id is one already.

    Raises:
        LightningError: it is neither a mapping nor has an id.
    """
    if getattr(given, "id", None) is not None:
        return given
    if isinstance(given, Mapping):
        return RowTask(given)
    shown = " ".join(repr(given).split())[:_SHOWN]
    raise LightningError(
        f"the task {shown} is a {type(given).__name__} without an id; give a dict, or an object with an attribute `id`"
        f"{_OF_TABLES}"
    )


def comparable(content: Any) -> str:
    """Return text that is equal for equal contents, whichever process made them: their JSON, with the ``repr`` of
    values that have no JSON, such as an image."""
    try:
        return json.dumps(content, sort_keys=True, default=_said)
    except (TypeError, ValueError):  # keys of several types, or a value that contains itself
        return _said(content)


def content_key(task: Any) -> str:
    """Return a key that is equal for tasks of the same id and content: several files may number their tasks alike."""
    content = [getattr(task, name, None) for name in ("fields", "input")]
    return f"{task.id} {hashlib.sha256(comparable(content).encode(errors='replace')).hexdigest()[:16]}"


def _said(value: Any) -> str:
    if isinstance(value, set | frozenset):  # in another order at each start
        return str(sorted(map(_said, value)))
    return _ADDRESS.sub("", repr(value))


def listed_tasks(given: Any) -> list[Any]:
    """Return as a list the tasks that a program gives.

    Raises:
        LightningError: it gives a table, a single task, or something that is not a collection of tasks.
    """
    one = isinstance(given, str | Mapping) or not isinstance(given, Iterable)
    if one or callable(getattr(type(given), "to_dict", None)):
        raise LightningError(f"the tasks are a {type(given).__name__}; give a list of tasks{_OF_TABLES}")
    return [*given]


@dataclass(frozen=True, slots=True)
class TaskFile:
    """All tasks of a file. It is read once: a pipe (``--tasks <(...)``) would be empty the second time."""

    tasks: tuple[FileTask, ...]
    """In the order of the file."""
    label: str
    """The file's part of a run's name: other tasks, even in a file of the same name, make another run."""


def read_tasks(path: Path) -> TaskFile:
    """Return the tasks in a file.

    Raises:
        LightningError: the file cannot be read, a task in it is not a JSON object, an id occurs twice, or there is no
            task.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LightningError(f"cannot read the tasks {path}: {error}") from error
    tasks: dict[str, FileTask] = {}
    unnamed: Counter[str] = Counter()
    for where, fields in (_rows if content.startswith(_PARQUET) else _lines)(path, content):
        if fields.get("id") is None:
            name = _name_by_content(fields)
            unnamed[name] += 1
            name += f"-{unnamed[name]}" if unnamed[name] > 1 else ""
        else:
            name = str(fields["id"])
        if name in tasks:
            raise LightningError(f"{where}: there is another task with the id {name!r}; give each its own")
        tasks[name] = FileTask(name, fields)
    if not tasks:
        raise LightningError(f"there is no task in {path}; write one JSON object a line")
    return TaskFile(tuple(tasks.values()), f"{path.name}@{hashlib.sha256(content).hexdigest()[:8]}")


def _lines(path: Path, content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line's place and object."""
    try:
        # Not splitlines(): strings in JSON may contain Unicode's other line ends.
        lines = re.split("\r\n?|\n", content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise LightningError(f"cannot read the tasks {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise LightningError(f"{where} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise LightningError(f"{where} is {line.strip()[:80]!r}; a task is one JSON object a line")
        yield where, fields


def _rows(path: Path, content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row's place in a Parquet file, and the row as the object that a line would hold."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f'{path} is Parquet, which needs pyarrow; run: pip install "lightning-trainer[dataset]", or give JSON lines'
        ) from error
    try:
        rows = pq.read_table(io.BytesIO(content)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise LightningError(f"cannot read the tasks {path} as Parquet: {error}") from error
    for number, fields in enumerate(rows, start=1):
        where = f"{path}: row {number}"
        for column, value in fields.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise LightningError(
                    f"{where}: the column {column!r} has no form in JSON, which a task is passed on as ({error}); "
                    "leave the column out, or make it text"
                ) from None
        yield where, fields


def _name_by_content(fields: Mapping[str, Any]) -> str:
    return f"task-{hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]}"


class Epochs:
    """Chooses the tasks of each step: all of them in turn, in a new order every epoch.

    The choice depends only on the seed, the run's number and the step, so an interrupted run continues with the same
    tasks.

    Raises:
        LightningError: a step needs more different tasks than there are.
    """

    def __init__(self, tasks: Sequence[FileTask], *, per_step: int, seed: int) -> None:
        if len(tasks) < per_step:
            raise LightningError(
                f"there are {len(tasks)} tasks and the policy's groups_per_step is {per_step}; give at least as many "
                "tasks, or make groups_per_step smaller"
            )
        self._tasks = tasks
        self._per_step = per_step
        self._seed = seed
        self._steps_per_epoch = len(tasks) // per_step

    def __call__(self, step: int, *, run: int = 1) -> Sequence[FileTask]:
        """Return the tasks of a step, counted from 1. Tasks left over that do not fill a step wait for another epoch.

        Args:
            run: this run's number among the runs of one name (``StepRunner.run_number``); each has its own order.
        """
        epoch, place = divmod(step - 1, self._steps_per_epoch)
        drawn = f"{self._seed}/{epoch}" if run == 1 else f"{self._seed}/{epoch}/{run}"
        order = random.Random(drawn).sample(self._tasks, len(self._tasks))
        return order[place * self._per_step : (place + 1) * self._per_step]
