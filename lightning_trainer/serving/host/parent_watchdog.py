"""No process of the engine outlives the one that started it, however that one ended.

The host watches its standard input, which closes with its parent; vLLM's processes watch the id of theirs, because its
engine core would go on without a host. One that was stopped (SIGSTOP) cannot watch: the kernel lets it go on then.
"""

import ctypes
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_GRACE_S = 15.0
_SET_SIGNAL_AT_PARENTS_END = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def watch_standard_input() -> None:
    """End this process when its parent is gone.

    The parent's id is watched as well as the pipe: a process that the parent forked may hold the pipe open.
    """
    parent, descriptor = os.getppid(), sys.stdin.fileno()

    def wait() -> None:
        while os.getppid() == parent:
            readable, _, _ = select.select([descriptor], [], [], _POLL_S)
            if readable and not os.read(descriptor, 4096):
                return

    _end_after(wait)


def follow_parent(parent: int) -> None:
    """End this process when the one with this id is no longer its parent."""

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)

    _end_after(wait)


def _end_after(wait: Callable[[], None]) -> None:
    def watch() -> None:
        wait()
        logger.warning("the parent of process %d is gone: stopping", os.getpid())
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_S)
        os._exit(1)

    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):  # on Linux
        library.prctl(_SET_SIGNAL_AT_PARENTS_END, int(signal.SIGCONT))
    threading.Thread(target=watch, name="lightning-parent-watchdog", daemon=True).start()
