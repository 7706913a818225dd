"""Which steps the weights of a version are made of, when versions were rolled back.

A step goes on from the head: the version before it, or the one that was rolled back to since. Numbers are never used
again, so the steps that a rollback left behind stay what they were, and can be gone back to as well.
"""

from collections.abc import Iterable, Sequence

from lightning_trainer.store.records import Rollback


class Lineage:
    """Parents of versions; version 0 is the model that the run started from."""

    def __init__(self, trained_steps: Iterable[int], rollbacks: Sequence[Rollback] = ()) -> None:
        """Work out who came from whom.

        Args:
            trained_steps: those that changed the weights, or will when they are repeated; ascending.
            rollbacks: in the order in which they were made.
        """
        self._parents: dict[int, int] = {}
        self.head = 0
        """The version whose weights the next step goes on from."""
        waiting = list(rollbacks)
        for step in trained_steps:
            while waiting and waiting[0].after_step < step:
                self.head = waiting.pop(0).version
            self._parents[step] = self.head
            self.head = step
        for rollback in waiting:
            self.head = rollback.version

    def __contains__(self, version: int) -> bool:
        return version == 0 or version in self._parents

    def parent(self, version: int) -> int | None:
        """Return the version that this one was trained from; None for version 0 and for what is not a version."""
        return self._parents.get(version)

    def path(self, version: int | None = None) -> tuple[int, ...]:
        """Return the versions from 0 to ``version`` (the head when absent): repeating these steps gives its weights."""
        path = [self.head if version is None else version]
        while path[-1] != 0:
            path.append(self._parents[path[-1]])
        return tuple(reversed(path))
