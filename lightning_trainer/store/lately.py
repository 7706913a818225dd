"""A cached answer about a store that is being written, for answers that take long to compute.

A query returns soon: if a new answer takes longer than ``_PATIENCE_S``, the previous one is returned.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_PATIENCE_S = 0.1
_SHARE = 0.02
"""Maximum share of the time spent on computing answers."""
Answer = TypeVar("Answer")


class Lately(Generic[Answer]):
    """The newest answer of a query, made again when a caller asks and the store has changed.

    Args:
        make: makes an answer, in a thread of the store's; one is made at a time, however many callers ask.
        stamp: returns a value that stays the same until new data arrives; without it, the store counts as changed
            whenever a caller asks.
    """

    def __init__(
        self, make: Callable[[], Awaitable[Answer]], stamp: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        self._make = make
        self._stamp = stamp
        self._stamped: object = object()
        self._making: asyncio.Task[Answer] | None = None
        self._took_s = 0.0
        self._made_at = 0.0
        self._answer: list[Answer] = []
        """The newest answer, if there is one."""

    @property
    def age_s(self) -> float:
        """Return the age of the newest answer."""
        return time.monotonic() - self._made_at

    async def get(self) -> Answer:
        """Return a new answer, or the previous one if a new one is not needed or takes long.

        Raises:
            StoreError: the store cannot be read.
        """
        if self._making is None or self._making.done():
            if self._answer and not await self._is_wanted():
                return self._answer[0]
            self._making = asyncio.create_task(self._make_one(), name="answer")
        await asyncio.wait({self._making}, timeout=_PATIENCE_S if self._answer else None)
        return self._making.result() if self._making.done() else self._answer[0]

    async def _is_wanted(self) -> bool:
        rested = self._took_s < _PATIENCE_S or self.age_s >= self._took_s / _SHARE
        return rested and (self._stamp is None or await self._stamp() != self._stamped)

    async def _make_one(self) -> Answer:
        began = time.monotonic()
        stamped = None if self._stamp is None else await self._stamp()
        answer = await self._make()
        self._answer, self._stamped, self._made_at = [answer], stamped, time.monotonic()
        self._took_s = self._made_at - began
        return answer
