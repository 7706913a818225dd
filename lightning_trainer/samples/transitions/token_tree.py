"""The token tree of some calls: which other call's exact tokens each of them extends.

A call's path is its prompt and its response. A call extends the one with the longest path that its prompt starts with,
token for token; a prompt that continues nothing in full (re-rendered history, a retry, a new conversation) extends
nothing. Images and other media are placeholders among the tokens, equal whatever they show, so a prompt with different
media extends nothing either.

Prompts and paths are sorted as byte strings, so that everything that starts with a string follows it directly. A stack
holds the paths that the current string starts with; each is pushed and popped once. Apart from sorting, time is linear
in the tokens. Prompts that begin differently are sorted separately, so that the paths of only one conversation at a
time take memory.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

from lightning_trainer.token_ids import Ids, packed
from lightning_trainer.types import Media

_BEGINNING = 32
"""In bytes: enough tokens to tell conversations apart, unless a template begins them alike."""


class Tokens(Protocol):
    """The parts of a call or transition that decide what it extends."""

    @property
    def prompt_ids(self) -> Ids: ...
    @property
    def response_ids(self) -> Ids: ...
    @property
    def media(self) -> tuple[Media, ...]: ...


@dataclass(slots=True)
class _Path:
    """A path that the strings now being read start with."""

    string: bytes
    first: int
    """The first call that has it."""
    by_owner: dict[Hashable, int] = field(default_factory=dict)
    """The first call of each owner that has it."""


def token_parents(calls: Sequence[Tokens], owners: Sequence[Hashable] | None = None) -> tuple[int | None, ...]:
    """Return for each call the index of the one that it extends; None if it extends none.

    Of several calls with the same path, which cannot be told apart, the first is taken, or the first of the same owner
    if there is one.

    Args:
        calls: calls or transitions, of any number of agents and attempts.
        owners: the owner of each call, such as its agent and attempt.
    """
    prompts = [packed(call.prompt_ids) for call in calls]
    parents: list[int | None] = [None] * len(calls)
    for places in _by_beginning(prompts):
        strings = [(prompts[place] + packed(calls[place].response_ids), place, True) for place in places]
        strings += [(prompts[place], place, False) for place in places]
        above: list[_Path] = []
        # Paths come first: sorting is stable, and a prompt may extend a path that is equal to it.
        for string, place, is_path in sorted(strings, key=itemgetter(0)):
            while above and not string.startswith(above[-1].string):
                above.pop()
            if is_path:
                if not above or above[-1].string != string:
                    above.append(_Path(string, place))
                if owners is not None:
                    above[-1].by_owner.setdefault(owners[place], place)
            elif above:
                extended = above[-1].first if owners is None else above[-1].by_owner.get(owners[place], above[-1].first)
                shown = calls[extended].media
                if shown == calls[place].media[: len(shown)]:
                    parents[place] = extended
    return tuple(parents)


def _by_beginning(prompts: Sequence[bytes]) -> Iterable[list[int]]:
    """Return the indexes of prompts that begin alike; a prompt and all that it starts with are in one list."""
    common = min(_BEGINNING, min(map(len, prompts), default=0))
    places: dict[bytes, list[int]] = {}
    for place, prompt in enumerate(prompts):
        places.setdefault(prompt[:common], []).append(place)
    return places.values()
