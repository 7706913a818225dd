"""The token tree of some calls: which one's exact tokens each of them extends, and where they part.

A call's path is its prompt and its response. Paths that begin with the same tokens are one branch up to the token
where they differ; there they fork. Invariants: the runs from a root to the end of a call's path, put together, are
exactly the tokens that the engine saw and sampled (promise 3); a token is sampled (mask 1) where some call sampled it
behind the very same tokens, anything else (prompts, tool output, history that was rendered anew) is an observation
(mask 0).

A call extends the one with the longest path that its prompt starts with, token for token; a prompt that continues
nothing in full (re-rendered history, a retry, a new conversation) extends nothing. Images and the like are placeholders
among the tokens, equal whatever they show: a prompt with others in them extends nothing either.

Prompts and paths are sorted as byte strings, where everything that starts with a string follows it in one run. A stack
holds those that the present one starts with: each is pushed and popped once. Sorting apart, time is linear in the
tokens. What begins differently is sorted apart: of many conversations, the paths of one at a time take memory.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lightning_trainer.samples.transitions.token_runs import Run, runs_of
from lightning_trainer.token_ids import Ids, packed
from lightning_trainer.types import Media

_BEGINNING = 32
"""Bytes; as many tokens as tell conversations apart, where a template does not begin them alike."""


class Tokens(Protocol):
    """What the tree knows of a call or a transition."""

    @property
    def prompt_ids(self) -> Ids: ...
    @property
    def response_ids(self) -> Ids: ...
    @property
    def media(self) -> tuple[Media, ...]: ...


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Immutable; calls are named by their place in the sequence that it was made of."""

    parents: tuple[int | None, ...]
    """For each call the one that it extends. Of several with the very same path the first is taken, one of the same
    owner before others: they cannot be told apart."""
    calls: tuple[Tokens, ...]

    def runs(self) -> tuple[Run, ...]:
        """Return the nodes in depth-first preorder; they are worked out anew each time."""
        return runs_of([(packed(call.prompt_ids), packed(call.response_ids)) for call in self.calls])

    @property
    def unique_tokens(self) -> int:
        """How many tokens there are when what paths share counts once."""
        return sum(len(run.token_ids) for run in self.runs())


def token_tree(calls: Sequence[Tokens], owners: Sequence[Hashable] | None = None) -> TokenTree:
    """Build the tree.

    Args:
        calls: calls or transitions, of any number of agents and attempts.
        owners: of each call; which of two equal paths is extended (``TokenTree.parents``).
    """
    prompts = [packed(call.prompt_ids) for call in calls]
    parents: list[int | None] = [None] * len(calls)
    for places in _by_beginning(prompts):
        # Paths come first: sorting keeps the order of what is equal, and a prompt may extend the very same path.
        strings = [prompts[index] + packed(calls[index].response_ids) for index in places]
        strings += [prompts[index] for index in places]
        open_paths: list[tuple[bytes, int, dict[Hashable, int]]] = []
        for place in sorted(range(len(strings)), key=strings.__getitem__):
            string, index = strings[place], places[place % len(places)]
            while open_paths and not string.startswith(open_paths[-1][0]):
                open_paths.pop()
            if place >= len(places):
                if open_paths:
                    _, first, twins = open_paths[-1]
                    extended = first if owners is None else twins.get(owners[index], first)
                    shown = calls[extended].media
                    if shown == calls[index].media[: len(shown)]:
                        parents[index] = extended
            elif not open_paths or open_paths[-1][0] != string:
                open_paths.append((string, index, {} if owners is None else {owners[index]: index}))
            elif owners is not None:
                open_paths[-1][2].setdefault(owners[index], index)
    return TokenTree(tuple(parents), tuple(calls))


def _by_beginning(prompts: Sequence[bytes]) -> Iterable[list[int]]:
    """Return the places of the prompts that begin alike; none lies apart from one that it starts with."""
    common = min(_BEGINNING, min(map(len, prompts), default=0))
    places: dict[bytes, list[int]] = {}
    for place, prompt in enumerate(prompts):
        places.setdefault(prompt[:common], []).append(place)
    return places.values()
