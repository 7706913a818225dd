"""Which of several engines a call goes to: where its conversation was last, unless that one has clearly more to do.

An engine has the prefix of a conversation in its cache, and the ids that it sampled for it, only if it answered the
turn before. Invariant: an engine never gets a call that would leave it with more than 1.25 times its even share of the
calls in flight, rounded up; so no engine is swamped by the conversations that it happens to hold.
Source: Mirrokni, Thorup, Zadimoghaddam, Consistent Hashing with Bounded Loads, arXiv 1608.01350; here the home of a new
conversation is where the fewest calls are, since all calls come by one place that can remember it.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Engine = TypeVar("Engine")

_BALANCE = 1.25
_REMEMBERED = 65_536


@dataclass(frozen=True, slots=True)
class AffinityCounts:
    """Calls that went on with a conversation, since the start."""

    stayed: int = 0
    """At the engine that answered the call before."""
    moved: int = 0
    """To another one: theirs was gone, or had more to do."""


class Affinity(Generic[Engine]):
    """Where conversations are, the most recent ones.

    Args:
        remembered: conversations; those without a call for longest are forgotten first.
    """

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._homes: OrderedDict[str, Engine] = OrderedDict()
        self._dealt = 0
        self.counts = AffinityCounts()

    def choose(self, engines: Sequence[Engine], in_flight: Mapping[Engine, int], conversation: str | None) -> Engine:
        """Return the engine for one more call.

        Args:
            engines: one or more that would take it.
            in_flight: calls of each.
            conversation: None: it goes on with none.
        """
        home = None if conversation is None else self._homes.get(conversation)
        allowed = math.ceil(_BALANCE * (sum(in_flight[one] for one in engines) + 1) / len(engines))
        if home is not None and home in engines and in_flight[home] < allowed:
            chosen = home
        else:
            # Of engines with equally few they are dealt out in turn: most come when nothing runs, and all will stay.
            at = {one: (place - self._dealt) % len(engines) for place, one in enumerate(engines)}
            chosen = min(engines, key=lambda one: (in_flight[one], at[one]))
            self._dealt += conversation is not None
        if conversation is not None:
            self._note(conversation, home, chosen)
        return chosen

    def _note(self, conversation: str, home: Engine | None, chosen: Engine) -> None:
        counts = self.counts
        if home is not None:
            self.counts = AffinityCounts(counts.stayed + (chosen is home), counts.moved + (chosen is not home))
        self._homes[conversation] = chosen
        self._homes.move_to_end(conversation)
        if len(self._homes) > self._remembered:
            self._homes.popitem(last=False)
