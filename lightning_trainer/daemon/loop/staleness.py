"""How old a sampled token is: the versions that have gone live since the one that sampled it.

Counted in what was served and not in optimiser steps, because nobody sampled from a version that the engine refused,
and a step that trained nothing has none. What a rollback took back does not count either.
"""

from collections.abc import Container, Iterable, Sequence


def served(versions: Iterable[int], path: Container[int]) -> tuple[int, ...]:
    """Return the versions that the present weights are made of, ascending.

    Args:
        versions: those that are or were live.
        path: the versions that the present weights are made of.
    """
    return tuple(sorted(version for version in versions if version in path))


def oldest_allowed(served: Sequence[int], max_staleness: int | None) -> int:
    """Return the oldest version whose tokens are not stale: those of the newest have staleness 0."""
    if max_staleness is None or len(served) <= max_staleness:
        return 0
    return served[-1 - max_staleness]
