"""A pool of processes of one environment, leased to attempts; a failed one is replaced at the next lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Self

from lightning_trainer.environments.errors import EnvironmentTimeoutError
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.worker.process import EnvironmentProcess, Launch

_STARTS_AT_ONCE = 4
"""Processes that start at once: each one's imports take a core, so more would only be slower."""
_CLOSES_AT_ONCE = 16


class EnvironmentPool:
    """A pool of at most ``size`` processes. The first one starts immediately, so an environment that cannot run fails
    before any attempt.

    Raises:
        EnvironmentFailedError: the environment does not start.
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
        self._abandoned: set[EnvironmentProcess] = set()
        """Processes that were killed, while the attempt that was given up may still be using them."""

    @contextmanager
    def lease(self, longest_s: float = threading.TIMEOUT_MAX) -> Iterator[EnvironmentProcess]:
        """Lease a process for one attempt, waiting if all are busy.

        Args:
            longest_s: limit of the lease, including the wait; after it the process is killed, and another one may start
                in its place.

        Raises:
            EnvironmentTimeoutError: no process was free in that time.
            EnvironmentFailedError: a new process does not start.
        """
        give_up = time.monotonic() + min(longest_s, threading.TIMEOUT_MAX)
        self._enter(self._free, give_up)
        try:
            process = self._taken(give_up)
        except BaseException:
            self._free.release()
            raise
        over = threading.Timer(give_up - time.monotonic(), self._abandon, [process])
        over.daemon = True
        try:
            over.start()
            yield process
        finally:
            over.cancel()
            self._given_back(process)

    def close(self) -> None:
        """End all processes; running attempts fail."""
        with self._lock:
            self._closed = True
            idle, leased = list(self._idle), [*self._leased, *self._abandoned]
            self._idle.clear()
        for process in leased:
            process.kill()
        with ThreadPoolExecutor(_CLOSES_AT_ONCE) as closing:
            closing.map(EnvironmentProcess.close, idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _enter(self, gate: threading.Semaphore, give_up: float) -> None:
        if not gate.acquire(timeout=max(0.0, give_up - time.monotonic())):
            raise EnvironmentTimeoutError(
                f"the attempt had no process of the environment {self._launch.label} before its time was over, since "
                "others were starting or playing; make fewer attempts at once, or give them more time"
            )

    def _taken(self, give_up: float) -> EnvironmentProcess:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    self._leased.add(process)
                    return process
                process.close()  # it died while idle
        self._enter(self._starting, give_up)
        try:
            process = EnvironmentProcess(self._launch, self._limits)
        finally:
            self._starting.release()
        with self._lock:
            self._leased.add(process)
        return process

    def _abandon(self, process: EnvironmentProcess) -> None:
        with self._lock:
            if process not in self._leased:
                return
            self._leased.discard(process)
            self._abandoned.add(process)
        process.abandon()
        self._free.release()

    def _given_back(self, process: EnvironmentProcess) -> None:
        with self._lock:
            held = process in self._leased
            self._leased.discard(process)
            self._abandoned.discard(process)
            kept = held and process.alive and not self._closed
            if kept:
                self._idle.append(process)
        if not kept:
            process.close()
        if held:
            self._free.release()
