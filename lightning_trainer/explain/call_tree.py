"""The calls of an attempt as one token tree: which call's exact tokens each extends, and where others fork.

A call whose prompt begins with all of another call's tokens is its child. Any other starts its own sequence; the prefix
that its prompt shares with an earlier call is still the same tokens, and it forks at the first token that differs.
Sampled tokens are in one place in the tree, that of their call.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_trainer.samples.transitions.token_tree import token_parents
from lightning_trainer.token_ids import packed
from lightning_trainer.types import Call

_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class CallNode:
    """One call in the tree. Calls are identified by their number in order of time, from 1."""

    number: int
    call: Call
    parent: int | None
    """The call whose tokens the prompt extends."""
    beside: int | None
    """Without a parent: the earlier call with the longest common prefix."""
    shared: int
    """Number of prompt tokens shared with the parent, or with the call in ``beside``."""

    @property
    def new_prompt_ids(self) -> tuple[int, ...]:
        """Return the prompt tokens that no ancestor in the tree contains."""
        return self.call.prompt_ids[self.shared :]


def call_tree(calls: Sequence[Call]) -> tuple[CallNode, ...]:
    """Return the calls as nodes, in order.

    Args:
        calls: by start time; calls without token ids become nodes without relations.
    """
    known = [index for index, call in enumerate(calls) if call.prompt_ids and call.response_ids]
    parents: dict[int, int] = {
        index: known[parent]
        for index, parent in zip(known, token_parents([calls[index] for index in known]), strict=True)
        if parent is not None
    }
    beside = _nearest_paths(calls, known)
    nodes = []
    for index, call in enumerate(calls):
        parent, other = parents.get(index), None
        shared = 0
        if parent is not None:
            shared = len(calls[parent].prompt_ids) + len(calls[parent].response_ids)
        elif index in beside:
            other, shared = beside[index]
        nodes.append(
            CallNode(
                number=index + 1,
                call=call,
                parent=None if parent is None else parent + 1,
                beside=None if other is None else other + 1,
                shared=shared,
            )
        )
    return tuple(nodes)


def in_order(nodes: Sequence[CallNode]) -> list[tuple[CallNode, int]]:
    """Return every node after its parent, branch by branch, with the number of forks above it."""
    children: dict[int | None, list[CallNode]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    ordered: list[tuple[CallNode, int]] = []
    open_nodes = [(node, 0) for node in reversed(children.get(None, []))]
    while open_nodes:
        node, depth = open_nodes.pop()
        ordered.append((node, depth))
        own = children.get(node.number, [])
        open_nodes += [(child, depth + (len(own) > 1)) for child in reversed(own)]
    return ordered


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    return _common(packed(one), packed(other)) // _ID_BYTES


def _nearest_paths(calls: Sequence[Call], known: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return, for each call, the earlier call with the longest common prefix, and the length of that prefix."""
    paths: list[tuple[bytes, int]] = []  # sorted, so a neighbor has the longest common prefix
    nearest: dict[int, tuple[int, int]] = {}
    for index in known:
        prompt = packed(calls[index].prompt_ids)
        place = bisect_left(paths, (prompt, -1))
        near = paths[max(0, place - 1) : place + 1]
        length = max((_common(prompt, path) // _ID_BYTES for path, _ in near), default=0)
        if length:
            # The first of those with an equally long prefix: a call comes before those that extend it.
            other = paths[bisect_left(paths, (prompt[: _ID_BYTES * length], -1))][1]
            nearest[index] = (other, length)
        insort(paths, (prompt + packed(calls[index].response_ids), index))
    return nearest


def _common(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix in bytes, by bisection: comparing slices is faster than a loop."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
