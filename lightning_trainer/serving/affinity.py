"""Session affinity: a call goes to the replica that last had its conversation, unless that one is clearly more loaded.

Only the replica that answered the previous turn has the conversation's prefix in its cache, and the ids that it
sampled. Invariant: no replica gets a call that would give it more than 1.25 times its even share of the calls in
flight, rounded up, so none is swamped by the conversations that it happens to hold. Source: Mirrokni, Thorup,
Zadimoghaddam, Consistent Hashing with Bounded Loads, arXiv 1608.01350; here a new conversation goes to the replica with
the fewest calls, because all calls pass through one place, which can remember the choice.
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
    """Counts of calls that continued a conversation, since the start."""

    stayed: int = 0
    """Calls answered by the replica of the conversation's previous call."""
    moved: int = 0
    """Calls that went to another replica: the conversation's own was gone, or clearly more loaded."""


class Affinity(Generic[Engine]):
    """The replica of each recent conversation.

    Args:
        remembered: number of conversations; the least recently used are forgotten first.
    """

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._homes: OrderedDict[str, Engine] = OrderedDict()
        self._dealt = 0
        self.counts = AffinityCounts()

    def choose(self, engines: Sequence[Engine], in_flight: Mapping[Engine, int], conversation: str | None) -> Engine:
        """Return the replica for one more call.

        Args:
            engines: one or more candidates.
            in_flight: calls in flight at each.
            conversation: None if the call continues none.
        """
        home = None if conversation is None else self._homes.get(conversation)
        allowed = math.ceil(_BALANCE * (sum(in_flight[one] for one in engines) + 1) / len(engines))
        if home is not None and home in engines and in_flight[home] < allowed:
            chosen = home
        else:
            # Ties are broken round-robin: most conversations begin when nothing runs, and stay where they began.
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
