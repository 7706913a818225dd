"""Work that arises in code that the garbage collector runs, and must not be done there.

A collection can begin at any point, even while the same thread holds one of our locks or OpenTelemetry's; work that
needs that lock would then wait forever. Such work is only noted, and is done when the next span begins or ends, at
``flush``, and at exit. Appending to a deque takes no lock.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from lightning_instrumentation.failures import guarded

_waiting: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
_at_exit: dict[object, Callable[[], None]] = {}


def defer(work: Callable[..., Any], *arguments: Any) -> None:
    """Note work for later; safe in a finalizer, since it takes no lock."""
    _waiting.append((work, arguments))


def when_gone(thing: object, work: Callable[[], None]) -> None:
    """Do ``work``, which must be safe in a finalizer, as soon as nothing holds ``thing``, or at exit."""
    never_mind = at_exit(work)

    def gone() -> None:
        never_mind()
        work()

    # The finalizer's own exit handler would run after delivery if the program used a finalizer before it imported us.
    weakref.finalize(thing, gone).atexit = False


def at_exit(work: Callable[[], None]) -> Callable[[], None]:
    """Do ``work`` when the program ends, before delivery; return a function that cancels it."""
    key = object()
    _at_exit[key] = work

    def never_mind() -> None:
        _at_exit.pop(key, None)

    return never_mind


def program_ends() -> None:
    """Do the work that was left for the end of the program."""
    while _at_exit:
        try:
            _, work = _at_exit.popitem()
        except KeyError:  # another thread took it
            return
        guarded("later", work)


def do_waiting() -> None:
    """Do the noted work; failures are counted and reported, not raised."""
    while _waiting:
        try:
            work, arguments = _waiting.popleft()
        except IndexError:  # another thread took it
            return
        guarded("later", work, *arguments)


def forget() -> None:
    """Drop the noted work in a forked child, because the parent does it."""
    _waiting.clear()
    _at_exit.clear()
