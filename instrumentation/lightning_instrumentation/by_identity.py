"""What is made of an object, remembered for that very object: for those that cannot be hashed or are slow to be."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ByIdentity(Generic[T, R]):
    """Calls ``make`` once for each of the ``most`` objects that it keeps; emptied when full."""

    def __init__(self, make: Callable[[T], R], *, most: int) -> None:
        self._make = make
        self._most = most
        # The object stands beside what was made of it, so that its number stays its own.
        self._known: dict[int, tuple[T, R]] = {}

    def __call__(self, thing: T) -> R:
        known = self._known.get(id(thing))
        if known is None:
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[id(thing)] = thing, self._make(thing)
        return known[1]
