"""Ctrl-C while a run polls or waits: one line and the exit status that shells expect, not a traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTED = 130
"""128 and the number of SIGINT."""


@contextmanager
def ends_in_one_line() -> Iterator[None]:
    """Turn a ``KeyboardInterrupt`` into a line on stderr and ``SystemExit(130)``; ``finally`` blocks run as always.

    What has ended by then is recorded, and attempts that were going on count as never made: a run that is started again
    makes them.
    """
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted: what has ended is recorded; start it again to go on from there", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None
