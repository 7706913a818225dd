"""Which steps a version's weights are made of, given rollbacks.

A step continues from the head: the version before it, or the target of a rollback since. Numbers are never reused, so
the steps that a rollback left behind remain valid targets.
"""

from collections.abc import Iterable, Sequence

from lightning_trainer.store.records import Rollback


class Lineage:
    """Parents of versions; version 0 is the initial model."""

    def __init__(self, trained_steps: Iterable[int], rollbacks: Sequence[Rollback] = ()) -> None:
        """Compute the parents.

        Args:
            trained_steps: those that changed the weights, or will when they are repeated; ascending.
            rollbacks: in chronological order.
        """
        self._parents: dict[int, int] = {}
        self.head = 0
        """The version that the next step continues from."""
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
        """Return the version that this one was trained from; None for version 0 and for unknown versions."""
        return self._parents.get(version)

    def path(self, version: int | None = None) -> tuple[int, ...]:
        """Return the versions from 0 to ``version`` (by default the head): repeating these steps gives its weights."""
        path = [self.head if version is None else version]
        while path[-1] != 0:
            path.append(self._parents[path[-1]])
        return tuple(reversed(path))
