"""What follows what: the edges along which rewards are discounted (promise 4).

1. A transition follows the one whose tokens it extends.
2. A retry of a prompt is an alternative to the first try: it follows whatever that one follows.
3. Any other transition (a new prompt, a re-rendered history) follows the one before it in time, but only if no two of
   the agent's calls in this attempt overlapped. Where they did, the order in which parallel branches happened to run
   says nothing about what caused what, so such a transition starts a branch of its own: credit that might leak is not
   passed on. The same holds where the clock contradicts the tokens.
"""

from collections.abc import Sequence
from operator import attrgetter, lt

from lightning_trainer.transitions.token_tree import TokenTree
from lightning_trainer.types import Call


def parents_of(calls: Sequence[Call], tree: TokenTree) -> list[int | None]:
    """Return for each call the index of the one that it follows, or None; the edges form a forest.

    Args:
        calls: one agent's in one attempt, by start time, then id.
        tree: of these calls.
    """
    parents = list(tree.parents)
    if not _one_at_a_time(calls, parents):
        return parents
    for index, first_try in enumerate(tree.first_tries):
        if parents[index] is None and index > 0:
            parents[index] = index - 1 if first_try == index else parents[first_try]
    return parents


def _one_at_a_time(calls: Sequence[Call], parents: Sequence[int | None]) -> bool:
    if len(set(map(attrgetter("span_id"), calls))) < len(calls):
        return False  # the choices of one response share its span
    starts, ends = map(attrgetter("start_ns"), calls), map(attrgetter("end_ns"), calls)
    next(starts, None)
    if any(map(lt, starts, ends)):
        return False
    return all(parent is None or parent < index for index, parent in enumerate(parents))
