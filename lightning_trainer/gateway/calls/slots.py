"""A limit on calls in flight: each holds a request body, a connection, and memory for the engine's answer.

When the daemon stops, it takes no more calls and waits for those in flight (``drain``).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from lightning_trainer.gateway.errors import RefusalError, unavailable

_log = logging.getLogger(__name__)


class Slots:
    """Counts calls in flight; used on one event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0
        self._none_taken = asyncio.Event()
        self._none_taken.set()
        self.draining = False
        """Whether no more calls are taken, because the daemon is stopping."""

    def take(self) -> "Slot":
        """Return a slot.

        Raises:
            RefusalError: all are taken, 429; or the daemon is stopping, 503.
        """
        if self.draining:
            raise unavailable("this daemon is stopping; call again when it is back")
        if self.taken >= self._limit:
            raise RefusalError(
                429,
                f"{self.taken} calls are in flight already, the limit of this gateway; try again",
                kind="rate_limit_error",
                code="too_many_calls",
                retry_after_s=1,
            )
        self.taken += 1
        self._none_taken.clear()
        return Slot(self)

    def give_back(self) -> None:
        """Count one call less; only the slot itself calls this."""
        self.taken -= 1
        if self.taken == 0:
            self._none_taken.set()

    async def drain(self, timeout_s: float) -> None:
        """Take no more calls, and wait until those in flight have ended, or the time is up."""
        self.draining = True
        if self.taken == 0:
            return
        _log.info("%d calls are in flight; they have %g s to end", self.taken, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self._none_taken.wait()
        except TimeoutError:
            _log.warning("%d calls in flight are cut off after [gateway] drain_timeout_s = %g", self.taken, timeout_s)


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
            self._slots.give_back()
            if self._also is not None:
                self._also()
