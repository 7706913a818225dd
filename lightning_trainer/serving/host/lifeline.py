"""The host lives as long as its parent: standard input closes when the parent ends, however it ended."""

import logging
import os
import select
import signal
import sys
import threading
import time

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_GRACE_S = 15.0


def watch_parent() -> None:
    """Watch from a thread; send this process SIGTERM once the parent is gone, and end it hard if that does not.

    The parent's id is watched as well as the pipe: a process that the parent forked may hold the pipe open.
    """
    parent = os.getppid()

    def watch() -> None:
        descriptor = sys.stdin.fileno()
        while os.getppid() == parent:
            readable, _, _ = select.select([descriptor], [], [], _POLL_S)
            if readable and not os.read(descriptor, 4096):
                break
        logger.warning("the parent process is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_S)
        # The children watch this process (see plugin) and follow it.
        os._exit(1)

    threading.Thread(target=watch, name="lightning-lifeline", daemon=True).start()
