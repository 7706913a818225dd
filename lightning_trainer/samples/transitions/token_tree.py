"""The token tree of some calls: which one's exact tokens each of them extends.

A call's path is its prompt and its response. A call extends the one with the longest path that its prompt starts with,
token for token; a prompt that continues nothing in full (re-rendered history, a retry, a new conversation) extends
nothing. Images and the like are placeholders among the tokens, equal whatever they show: a prompt with others in them
extends nothing either.

Prompts and paths are sorted as byte strings, where everything that starts with a string follows it in one run. A stack
holds those that the present one starts with: each is pushed and popped once. Sorting apart, time is linear in the
tokens. What begins differently is sorted apart: of many conversations, the paths of one at a time take memory.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

from lightning_trainer.token_ids import Ids, packed
from lightning_trainer.types import Media

_BEGINNING = 32
"""Bytes; as many tokens as tell conversations apart, where a template does not begin them alike."""


class Tokens(Protocol):
    """What is looked at of a call or a transition."""

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
    """Return for each call the place of the one that it extends.

    Of several with the very same path, which cannot be told apart, the first is taken, one of the same owner before
    others.

    Args:
        calls: calls or transitions, of any number of agents and attempts.
        owners: of each call.
    """
    prompts = [packed(call.prompt_ids) for call in calls]
    parents: list[int | None] = [None] * len(calls)
    for places in _by_beginning(prompts):
        strings = [(prompts[place] + packed(calls[place].response_ids), place, True) for place in places]
        strings += [(prompts[place], place, False) for place in places]
        above: list[_Path] = []
        # Paths come first: sorting keeps the order of what is equal, and a prompt may extend the very same path.
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
    """Return the places of the prompts that begin alike; none lies apart from one that it starts with."""
    common = min(_BEGINNING, min(map(len, prompts), default=0))
    places: dict[bytes, list[int]] = {}
    for place, prompt in enumerate(prompts):
        places.setdefault(prompt[:common], []).append(place)
    return places.values()
