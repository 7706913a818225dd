"""When a group last heard of one of its attempts, by the daemon's own clock.

When an attempt ended says little about that: after an outage, of the daemon or of the network, attempts that ended long
ago come one after the other, and a group that was judged by their ends would be torn apart at the first of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from lightning_trainer.types import Attempt


class Arrivals:
    """Asked again and again, with all ended attempts that no step has consumed; times in nanoseconds since 1970."""

    def __init__(self, now_ns: int) -> None:
        self._looked_ns = now_ns
        self._heard: dict[str, tuple[int, int]] = {}
        """Attempts of each group, and when the last of them came."""

    def last_heard(self, attempts: Sequence[Attempt], now_ns: int) -> Mapping[str, int]:
        """Return by group when something last came.

        What was not there at the last look came after it, and not before it ended: a loop that trains for an hour does
        not look, and what was lost meanwhile shall not be waited for anew.
        """
        ends: dict[str, int] = {}
        for attempt in attempts:
            ends[attempt.group_id] = max(ends.get(attempt.group_id, 0), attempt.ended_ns or 0)
        counts = Counter(attempt.group_id for attempt in attempts)
        heard: dict[str, tuple[int, int]] = {}
        for group_id, count in counts.items():
            before, since_ns = self._heard.get(group_id, (0, 0))
            if count != before:
                since_ns = min(now_ns, max(ends[group_id], self._looked_ns))
            heard[group_id] = count, since_ns
        self._heard, self._looked_ns = heard, now_ns
        return {group_id: since_ns for group_id, (_, since_ns) in heard.items()}
