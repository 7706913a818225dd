"""A limit on calls in flight: each holds a request body, a connection, and memory for the engine's answer."""

from collections.abc import Callable
from dataclasses import dataclass

from lightning_trainer.gateway.errors import RefusalError


class Slots:
    """Counts calls in flight; used on one event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0

    def take(self) -> "Slot":
        """Return a slot.

        Raises:
            RefusalError: all are taken; 429.
        """
        if self.taken >= self._limit:
            raise RefusalError(
                429,
                f"{self.taken} calls are in flight already, the limit of this gateway; try again",
                kind="rate_limit_error",
                code="too_many_calls",
                retry_after_s=1,
            )
        self.taken += 1
        return Slot(self)


@dataclass(slots=True)
class Slot:
    """One call's place; giving it back twice is harmless."""

    _slots: Slots
    _released: bool = False
    _also: Callable[[], None] | None = None

    def also_release(self, release: Callable[[], None]) -> None:
        """Also call ``release`` when the slot is released; at once if it already has been."""
        if self._released:
            release()
        else:
            self._also = release

    def release(self) -> None:
        """Return the place, and call what ``also_release`` was given."""
        if not self._released:
            self._released = True
            self._slots.taken -= 1
            if self._also is not None:
                self._also()
