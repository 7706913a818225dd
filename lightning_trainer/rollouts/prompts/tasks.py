"""The tasks of a search: those that it learns from, in which order, those that compare texts, and the unseen ones."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import Task
from lightning_trainer.rollouts.task_file import comparable, listed_tasks, task_of


@dataclass(frozen=True, slots=True)
class SearchTasks:
    """The tasks of a search."""

    feedback: Sequence[Task]
    """The tasks that texts are made from."""
    validation: Sequence[Task]
    """The tasks that candidates are compared at."""
    held_out: Sequence[Task]
    """The tasks that are used for neither; there may be none."""


def search_tasks(
    tasks: Sequence[Any], validation: Sequence[Any] | None, held_out: Sequence[Any], chance: random.Random
) -> SearchTasks:
    """Return the tasks that a program gives; without ``validation``, every second one of ``tasks`` in a random order is
    used for it.

    Raises:
        LightningError: a task has no id, or the id of another task in its list, or a held-out task is in another list.
    """
    named = _named(tasks)
    compared = None if validation is None else _named(validation)
    unseen = _named(held_out)
    _check_unseen(unseen, [*named, *(compared or [])])
    if compared is not None:
        return SearchTasks(named, compared, unseen)
    chance.shuffle(named)
    return SearchTasks(named[::2], named[1::2], unseen)


def minibatches(tasks: Sequence[Task], size: int, chance: random.Random) -> Iterator[list[Task]]:
    """Yield batches of the tasks that have not been shown for the longest time, in a new random order for each pass."""
    waiting: list[Task] = []
    while True:
        if len(waiting) < size:
            left = {one.id for one in waiting}
            drawn = [one for one in tasks if one.id not in left]
            chance.shuffle(drawn)
            waiting += drawn
        batch, waiting = waiting[:size], waiting[size:]
        yield batch


def _named(given: Sequence[Any]) -> list[Task]:
    tasks: list[Task] = [task_of(one) for one in listed_tasks(given)]
    for name, times in Counter(one.id for one in tasks).items():
        if times > 1:
            raise LightningError(f"{times} tasks are called {name!r}; give each an id of its own")
    return tasks


def _check_unseen(held_out: Sequence[Task], seen: Sequence[Task]) -> None:
    by_id: dict[str, list[Task]] = {}
    for one in seen:
        by_id.setdefault(one.id, []).append(one)
    for one in held_out:
        if any(_is_same(one, other) for other in by_id.get(one.id, ())):
            raise LightningError(
                f"the held-out task {one.id!r} is one that texts are made from or chosen by, so what is earned there "
                "says nothing about other tasks; hold out tasks that are not in the other lists"
            )


def _is_same(one: Task, other: Task) -> bool:
    """Whether two tasks with one id are the same task: several files may number their tasks alike."""
    contents = [getattr(task, "fields", None) for task in (one, other)]
    if None in contents:
        return one is other
    first, second = map(comparable, contents)
    return first == second
