"""How old a sampled token is: the versions that have gone live since the one that sampled it.

Counted in what was served and not in optimiser steps, because a version that the engine refused was sampled from by
nobody, and a step that trained nothing has none.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from lightning_trainer.types import PolicyVersion, Sample, VersionState


def served(versions: Iterable[PolicyVersion]) -> tuple[int, ...]:
    """Return the numbers of the versions that are or were live, ascending."""
    return tuple(sorted(v.version for v in versions if v.state in (VersionState.LIVE, VersionState.RETIRED)))


def oldest_allowed(served: Sequence[int], max_staleness: int | None) -> int:
    """Return the oldest version whose tokens are not stale: the newest has staleness 0."""
    if max_staleness is None or len(served) <= max_staleness:
        return 0
    return served[-1 - max_staleness]


def staleness_metrics(samples: Sequence[Sample], served: Sequence[int]) -> Mapping[str, float]:
    """Return the mean over the sampled tokens, and the largest."""
    ages = [
        (len(served) - bisect_right(served, segment.policy_version), segment.end - segment.start)
        for sample in samples
        for segment in sample.segments
    ]
    tokens = sum(count for _, count in ages)
    if tokens == 0:
        return {}
    return {
        "staleness/mean": sum(age * count for age, count in ages) / tokens,
        "staleness/max": float(max(age for age, _ in ages)),
    }
