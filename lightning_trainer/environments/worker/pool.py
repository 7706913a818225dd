"""A pool of processes of one environment, leased to attempts; a failed one is replaced at the next lease."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Self

from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.worker.process import EnvironmentProcess, Launch

_STARTS_AT_ONCE = 4
"""Processes that start at once: each one's imports take a core, so more would only be slower."""
_CLOSES_AT_ONCE = 16


class EnvironmentPool:
    """At most ``size`` processes. The first one starts immediately, so an environment that cannot run fails before any
    attempt.

    Raises:
        EnvironmentFailedError: it does not start.
    """

    def __init__(self, launch: Launch, limits: Limits, *, size: int) -> None:
        self._launch = launch
        self._limits = limits
        self._free = threading.Semaphore(size)
        self._starting = threading.Semaphore(_STARTS_AT_ONCE)
        self._lock = threading.Lock()
        self._closed = False
        first = EnvironmentProcess(launch, limits)
        self.version = first.version
        self.sizes = first.sizes
        self.holds_out = first.holds_out
        self._idle: list[EnvironmentProcess] = [first]
        self._leased: set[EnvironmentProcess] = set()

    @contextmanager
    def lease(self) -> Iterator[EnvironmentProcess]:
        """Lease a process for one attempt, waiting if all are busy.

        Raises:
            EnvironmentFailedError: another one does not start.
        """
        with self._free:
            process = self._taken()
            try:
                yield process
            finally:
                self._given_back(process)

    def close(self) -> None:
        """End them all; running attempts fail."""
        with self._lock:
            self._closed = True
            idle, leased = list(self._idle), list(self._leased)
            self._idle.clear()
        for process in leased:
            process.kill()
        with ThreadPoolExecutor(_CLOSES_AT_ONCE) as closing:
            closing.map(EnvironmentProcess.close, idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _taken(self) -> EnvironmentProcess:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    self._leased.add(process)
                    return process
                process.close()  # it died while idle
        with self._starting:
            process = EnvironmentProcess(self._launch, self._limits)
        with self._lock:
            self._leased.add(process)
        return process

    def _given_back(self, process: EnvironmentProcess) -> None:
        with self._lock:
            self._leased.discard(process)
            if process.alive and not self._closed:
                self._idle.append(process)
                return
        process.close()
