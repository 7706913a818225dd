"""Which candidate to go on from: of those that are best at some task, by how many tasks they are best at.

Source: Agrawal et al., GEPA: Reflective Prompt Evolution Can Outperform Reinforcement Learning, arXiv 2507.19457,
algorithm 2. A candidate that is best on average may have forgotten what another is alone able to do; going on from all
of them keeps what each has found out.
"""

import random
from collections.abc import Mapping, Sequence

Scores = Mapping[str, float]
"""A candidate's rewards by task; all candidates have the same tasks."""


def frontier(candidates: Sequence[Scores]) -> dict[int, int]:
    """Return by index of a candidate at how many tasks it is best, ties included; without those that lead nowhere, or
    only where one leads that leads elsewhere, too.

    Where a candidate leads is what counts, and not how far behind it is elsewhere: in the paper's example the one that
    leads at task 1 alone is dropped for the one that leads at tasks 1 and 2.

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
        ValueError: as ``frontier``.
    """
    among = frontier(candidates)
    return chance.choices(list(among), weights=list(among.values()))[0]
