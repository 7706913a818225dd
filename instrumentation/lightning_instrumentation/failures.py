"""Capture failures: counted by reason, logged once per reason, never raised.

Telemetry must not break the agent, and must not go missing silently either.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("lightning_instrumentation")


class Failures:
    """Counts by reason. ``note`` logs the first of each reason at ERROR level and only counts the others."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._said: set[str] = set()
        # Re-entrant: a garbage-collected stream ends in a finalizer, which may run at any point.
        self._lock = threading.RLock()

    def note(
        self, reason: str, sentence: str, *, error: BaseException | None = None, level: int = logging.ERROR
    ) -> None:
        """Count a failure; log the sentence if it is the first with this reason."""
        self.count(reason)
        if self._first(reason):
            suffix = f" ({type(error).__name__}: {text_of(error)})" if error is not None else ""
            log.log(level, "%s%s; said once, counted in lt.stats()", sentence, suffix)

    def say(self, about: str, sentence: str) -> None:
        """Log, once, what a user should know although it is not a failure."""
        if self._first(about):
            log.warning("%s; said once", sentence)

    def _first(self, reason: str) -> bool:
        with self._lock:
            first = reason not in self._said
            self._said.add(reason)
        return first

    def count(self, reason: str) -> None:
        """Count a failure without logging it."""
        with self._lock:
            self._counts[reason] += 1

    def counts(self) -> Mapping[str, int]:
        """Return a copy of the counts by reason."""
        with self._lock:
            return dict(self._counts)

    def in_child(self) -> None:
        """Reset after a fork: nothing has failed in the child, and a thread that does not exist there may hold the
        lock."""
        self._lock = threading.RLock()
        self._counts.clear()


failures = Failures()


def text_of(error: BaseException) -> str:
    """Return an exception's text, or its type if it cannot be turned into text."""
    try:
        return str(error)
    except Exception:  # its own ``__str__`` raised, perhaps the exception itself
        return f"<{type(error).__qualname__}>"


def guarded(reason: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call ``function`` and return its result; if it raises, note the exception under ``reason`` and return None."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        failures.note(reason, f"lightning could not record something ({reason}); the agent goes on", error=error)
        return None
