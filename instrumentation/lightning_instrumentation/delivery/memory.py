"""Spans that wait in memory because the disk cannot be written. They are lost with their process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

MOST_BYTES = 4 << 20
"""Maximum bytes in the body of a POST, unless a single span is longer."""


class MemorySpool:
    """A spool in memory, with the methods of ``Spool``; thread-safe."""

    rejected_path = None

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bodies: deque[bytes] = deque()
        self.bytes = 0

    @property
    def rows(self) -> int:
        return len(self._bodies)

    def append(self, body: bytes) -> None:
        with self._lock:
            self._bodies.append(body)
            self.bytes += len(body)

    def read(self, limit: int, most_bytes: int = MOST_BYTES) -> list[bytes]:
        bodies: list[bytes] = []
        with self._lock:
            for body in islice(self._bodies, limit):
                most_bytes -= len(body)
                if bodies and most_bytes < 0:
                    break
                bodies.append(body)
        return bodies

    def forget(self, bodies: Sequence[bytes]) -> None:
        with self._lock:
            for body in bodies:
                self._bodies.popleft()
                self.bytes -= len(body)

    def reject(self, body: bytes, reason: str) -> None:
        self.forget([body])

    def close(self) -> None:
        pass

    def hold_still(self) -> None:
        self._lock.acquire()

    def go_on(self) -> None:
        self._lock.release()

    def leave_to_parent(self) -> None:
        pass

    def __enter__(self) -> MemorySpool:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()
