"""Work that must not be done where it arises: in code that the garbage collector runs.

A collection can begin at any point, even while the same thread holds one of our locks or OpenTelemetry's, and would
then wait for that lock forever. Such work is only noted, and done when the next span begins or ends, at ``flush``, and
at exit. Appending to a deque takes no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from lightning_instrumentation.failures import guarded

_waiting: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()


def defer(work: Callable[..., Any], *arguments: Any) -> None:
    """Note work for later; safe in a finalizer, since it takes no lock."""
    _waiting.append((work, arguments))


def do_waiting() -> None:
    """Do the noted work; what fails is counted and reported, not raised."""
    while _waiting:
        try:
            work, arguments = _waiting.popleft()
        except IndexError:  # another thread took it
            return
        guarded("later", work, *arguments)


def forget() -> None:
    """Drop the noted work in a forked child, because the parent does it."""
    _waiting.clear()
