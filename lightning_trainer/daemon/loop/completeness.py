"""An attempt that has ended is held back until all of its spans have come, or nothing more comes for a while.

What the numbers on the spans guarantee, and what they do not, is in docs/delivery.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_trainer.types import Attempt


@dataclass(frozen=True, slots=True)
class Sorted:
    """Ended attempts, by whether they may be trained on."""

    ready: tuple[Attempt, ...]
    held: Mapping[str, int]
    """Attempts that are waited for: how many spans each lacks."""
    given_up: tuple[str, ...]
    """One sentence for each attempt that goes on without some of its spans from now on."""


class Completeness:
    """Remembers since when each attempt lacks how many spans; time is the caller's, in seconds."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lacking: dict[str, tuple[int, float]] = {}
        self._given_up: set[str] = set()

    def sort(self, attempts: Sequence[Attempt], missing: Mapping[str, int], now_s: float) -> Sorted:
        """Args:
        attempts: those that have ended and that no step has consumed.
        missing: how many spans each of them lacks; absent where none.
        """
        known = {attempt.attempt_id for attempt in attempts}
        self._lacking = {attempt_id: since for attempt_id, since in self._lacking.items() if attempt_id in known}
        self._given_up &= known
        ready: list[Attempt] = []
        held: dict[str, int] = {}
        sentences: list[str] = []
        for attempt in attempts:
            lacks = missing.get(attempt.attempt_id, 0)
            if not lacks or attempt.attempt_id in self._given_up:
                ready.append(attempt)
            elif self._is_worth_waiting(attempt.attempt_id, lacks, now_s):
                held[attempt.attempt_id] = lacks
            else:
                self._given_up.add(attempt.attempt_id)
                ready.append(attempt)
                sentences.append(
                    f"attempt {attempt.attempt_id}: {lacks} of its spans did not arrive and none has come for "
                    f"{self._timeout_s:g} s; it goes on without them (spans-missing)"
                )
        return Sorted(tuple(ready), held, tuple(sentences))

    def gave_up_on(self, attempts: Sequence[Attempt]) -> float:
        """Return how many of these go on without some of their spans."""
        return float(sum(attempt.attempt_id in self._given_up for attempt in attempts))

    def _is_worth_waiting(self, attempt_id: str, lacks: int, now_s: float) -> bool:
        before, since_s = self._lacking.get(attempt_id, (-1, now_s))
        if lacks != before:
            since_s = now_s  # something came: more may come
        self._lacking[attempt_id] = (lacks, since_s)
        return now_s - since_s < self._timeout_s
