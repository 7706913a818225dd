"""Ends each process of the engine when its parent has ended, however the parent ended.

The host watches its standard input, which closes with its parent. vLLM's processes watch their parent's id, because
vLLM's engine core would keep running without a host. A process that is stopped (SIGSTOP) cannot watch: the kernel
continues it (SIGCONT) when its parent ends.
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
    """End this process when the process with the id ``parent`` is no longer its parent."""

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
