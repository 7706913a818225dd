"""Work that must not be done where it arises: in code that the garbage collector runs.

A collection can begin in the middle of anything, also while this very thread holds one of our locks or OpenTelemetry's;
a thread that waits for that lock then waits for ever. Such work is only noted, and done when the next span begins or
ends, at ``flush`` and at the end. Appending to a deque takes no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from lightning_instrumentation.failures import guarded

_waiting: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()


def defer(work: Callable[..., Any], *arguments: Any) -> None:
    _waiting.append((work, arguments))


def do_waiting() -> None:
    while _waiting:
        try:
            work, arguments = _waiting.popleft()
        except IndexError:  # another thread took it
            return
        guarded("later", work, *arguments)


def forget() -> None:
    """In a forked child: it is the parent's to do."""
    _waiting.clear()
