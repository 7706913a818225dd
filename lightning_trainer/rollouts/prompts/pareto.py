"""The choice of a candidate to continue from: one that is best at some task, weighted by at how many tasks it is best.

Source: Agrawal et al., GEPA: Reflective Prompt Evolution Can Outperform Reinforcement Learning, arXiv 2507.19457,
algorithm 2. The candidate that is best on average may lack an ability that only another one has; continuing from all of
them keeps what each has found.
"""

import random
from collections.abc import Mapping, Sequence

Scores = Mapping[str, float]
"""A candidate's rewards by task; all candidates have the same tasks."""


def frontier(candidates: Sequence[Scores]) -> dict[int, int]:
    """Return, by a candidate's index, at how many tasks it is best, ties included. Left out are candidates that are
    best at no task, and those that are best only at tasks where one candidate is best that is best at other tasks, too.

    Only where a candidate is best counts, not how far behind it is elsewhere: in the paper's example, the candidate
    that is best at task 1 alone is dropped in favor of the one that is best at tasks 1 and 2.

    Raises:
        ValueError: there is no candidate, or they were not all tried at the same tasks.
    """
    tasks = set(candidates[0]) if candidates else set()
    if not tasks or any(set(scores) != tasks for scores in candidates):
        raise ValueError("candidates are compared at the same tasks, and at least at one")
    best = {task: max(scores[task] for scores in candidates) for task in tasks}
    leads = [{task for task in tasks if scores[task] == best[task]} for scores in candidates]
    return {index: len(own) for index, own in enumerate(leads) if own and not any(own < others for others in leads)}


def drawn(candidates: Sequence[Scores], chance: random.Random) -> int:
    """Return the index of a candidate of the frontier, drawn in proportion to the number of tasks that it is best at.

    Raises:
        ValueError: as for ``frontier``.
    """
    among = frontier(candidates)
    return chance.choices(list(among), weights=list(among.values()))[0]
