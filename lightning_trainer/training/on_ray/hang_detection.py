"""Hang detection: a process that is stopped, or hangs as a whole, does not answer but is not dead either.

A process that works, or only waits for others, is woken by its timers many times a minute. One that hangs uses no CPU
time.
"""

import contextlib
import logging
import time
from collections.abc import Iterable

import psutil

_SILENCE_S = 60.0
"""Long enough for a busy machine."""
_log = logging.getLogger(__name__)


class Stillness:
    """Watches processes of this machine for inactivity."""

    def __init__(self, silence_s: float = _SILENCE_S) -> None:
        self._silence_s = silence_s
        self._seen: dict[psutil.Process, tuple[object, float]] = {}

    def end_what_hangs(self, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
        """Resume stopped processes; kill and return those that were inactive for the whole period."""
        hanging = []
        for process in self.of(processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    _log.warning("%s (process %d) was stopped and is resumed", process.name(), process.pid)
                    process.resume()
                else:
                    _log.error("%s (process %d) hangs and is killed", process.name(), process.pid)
                    process.kill()
                    self._seen.pop(process, None)  # dying takes a moment: it is not killed again meanwhile
                    hanging.append(process)
        return hanging

    def of(self, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
        """Return the processes that were inactive for the whole period, without those that have ended."""
        now = time.monotonic()
        seen = {}
        for process in processes:
            if (activity := _activity(process)) is not None:
                last, since = self._seen.get(process, (None, now))
                seen[process] = (activity, since if activity == last else now)
        self._seen = seen
        return [process for process, (_, since) in seen.items() if now - since >= self._silence_s]


def _activity(process: psutil.Process) -> object:
    """Return a value that changes whenever the process does anything; None if it has ended."""
    try:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return process.cpu_times()[:2], process.num_ctx_switches()
    except psutil.NoSuchProcess:
        return None
