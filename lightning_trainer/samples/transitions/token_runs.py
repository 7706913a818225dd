"""The nodes of a token tree: runs of tokens that end where paths part, end, or begin to be sampled."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_instrumentation.telemetry.packing import unpack_token_ids

from lightning_trainer.token_ids import BYTES_A_TOKEN


@dataclass(frozen=True, slots=True)
class Run:
    """A node: consecutive tokens that all paths through it have in common."""

    start: int
    """Position of its first token in every path through it."""
    token_ids: tuple[int, ...]
    sampled: bool
    """Whether a call sampled these tokens (mask 1); a run is never partly sampled."""
    parent: int | None
    """Place of the run before it in the preorder; None for a root."""
    ends: tuple[int, ...]
    """The calls whose paths end with it."""


@dataclass(slots=True, eq=False)
class _Open:
    """A run that is still growing branches: split where a later path forks inside of it."""

    start: int
    end: int
    path: bytes
    rank: int
    """Place of the first string through it in the sorted order; with ``start`` it gives the preorder."""
    above: "_Open | None"
    ends: list[int]
    least_prompt: float = float("inf")
    """Tokens of the shortest prompt of the paths that go through it: later positions were sampled."""


def runs_of(calls: Sequence[tuple[bytes, bytes]]) -> tuple[Run, ...]:
    """Return the nodes in depth-first preorder.

    Args:
        calls: packed prompt and response of each call; a call with neither has no run.
    """
    strings = sorted(
        (string, call, kind)
        for call, (prompt, response) in enumerate(calls)
        for kind, string in enumerate((prompt, prompt + response))
    )
    made: list[_Open] = []
    stack: list[_Open] = []
    before = b""
    for rank, (string, call, is_path) in enumerate(strings):
        shared = _shared_tokens(before, string)
        while stack and stack[-1].start >= shared:
            stack.pop()
        if stack and stack[-1].end > shared:
            stack[-1] = _split(stack[-1], shared, made)
        if len(string) // BYTES_A_TOKEN > shared:
            above = stack[-1] if stack else None
            stack.append(_Open(shared, len(string) // BYTES_A_TOKEN, string, rank, above, []))
            made.append(stack[-1])
        if is_path and stack:
            stack[-1].ends.append(call)
            stack[-1].least_prompt = min(stack[-1].least_prompt, len(calls[call][0]) // BYTES_A_TOKEN)
        before = string
    return _preorder(made)


def _split(run: _Open, at: int, made: list[_Open]) -> _Open:
    """Cut a run in two and return the upper one; what hung on the run hangs on the lower one."""
    head = _Open(run.start, at, run.path, run.rank, run.above, [])
    run.start, run.above = at, head
    made.append(head)
    return head


def _preorder(made: list[_Open]) -> tuple[Run, ...]:
    made.sort(key=lambda run: (run.rank, run.start))
    for run in reversed(made):
        if run.above is not None:
            run.above.least_prompt = min(run.above.least_prompt, run.least_prompt)
    place = {id(run): index for index, run in enumerate(made)}
    return tuple(
        Run(
            start=run.start,
            token_ids=unpack_token_ids(run.path[run.start * BYTES_A_TOKEN : run.end * BYTES_A_TOKEN]),
            sampled=run.start >= run.least_prompt,
            parent=None if run.above is None else place[id(run.above)],
            ends=tuple(run.ends),
        )
        for run in made
    )


def _shared_tokens(one: bytes, other: bytes) -> int:
    """Return how many tokens two strings have in common at their beginning, in linear time without a loop."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length // BYTES_A_TOKEN
    differing = int.from_bytes(one[:length], "little") ^ int.from_bytes(other[:length], "little")
    return ((differing & -differing).bit_length() - 1) // (8 * BYTES_A_TOKEN)
