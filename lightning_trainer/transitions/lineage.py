"""What follows what: the edges along which rewards are discounted (promise 4).

1. A transition follows the one whose tokens it extends.
2. A retry of a prompt is an alternative to the first try: it follows whatever that one follows.
3. Any other transition (a new prompt, a re-rendered history) follows the one before it in time, but only if no two of
   the agent's calls in this attempt overlapped. Where they did, the order in which parallel branches happened to run
   says nothing about what caused what, so such a transition starts a branch of its own: credit that might leak is not
   passed on. The same holds where the clock contradicts the tokens.
"""

from collections.abc import Sequence

from lightning_trainer.transitions.token_tree import packed, token_parents
from lightning_trainer.types import Transition


def parents_of(transitions: Sequence[Transition], ends_ns: Sequence[int], spans: Sequence[str]) -> list[int | None]:
    """Return for each transition the index of the one that it follows, or None; the edges form a forest.

    Args:
        transitions: one agent's in one attempt, by start time, then id.
        ends_ns: when each response had ended.
        spans: which span recorded each; the choices of one response share it.
    """
    parents = token_parents(transitions)
    if not _one_at_a_time(transitions, ends_ns, spans, parents):
        return parents
    first_try: dict[bytes, int] = {}
    for index, transition in enumerate(transitions):
        tried = first_try.setdefault(packed(transition.prompt_ids), index)
        if parents[index] is None and index > 0:
            parents[index] = index - 1 if tried == index else parents[tried]
    return parents


def _one_at_a_time(
    transitions: Sequence[Transition], ends_ns: Sequence[int], spans: Sequence[str], parents: Sequence[int | None]
) -> bool:
    if len(set(spans)) < len(spans):
        return False
    return all(
        transitions[index].start_ns >= ends_ns[index - 1] and (parents[index] or 0) < index
        for index in range(1, len(transitions))
    ) and (not parents or parents[0] is None)
