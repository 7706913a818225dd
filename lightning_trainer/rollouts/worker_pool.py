"""Threads that run attempts in the order in which they were requested."""

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

import lightning_instrumentation as lt

from lightning_trainer.rollouts.awaiting import Waiting, waiting

WorkT = TypeVar("WorkT")
EndedT = TypeVar("EndedT")

_FLUSH_S = 30.0

_log = logging.getLogger(__name__)


class WorkerPool(Generic[WorkT, EndedT]):
    """A pool of at most ``size`` threads that call ``run(work)``; on exit, work that has not begun is dropped.

    The threads are daemonic, because an interrupted run must not wait for a hanging tool. A note on a
    ``KeyboardInterrupt`` says how many functions continue after it.
    """

    def __init__(self, run: Callable[[WorkT], EndedT], size: int) -> None:
        self._run = run
        self._size = size
        self._threads = 0
        self._queue: SimpleQueue[tuple[Future[EndedT], WorkT] | None] = SimpleQueue()
        self._asked_for: list[Future[EndedT]] = []
        self._running = 0
        self._lock = threading.Lock()
        self._waiting = Waiting()

    @property
    def ended(self) -> bool:
        """Whether the pool has ended, so that nothing waits for the attempts that are still running."""
        return self._waiting.ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        functions = self._running - self._waiting.end()
        if isinstance(error, KeyboardInterrupt) and functions > 0:
            error.add_note(f"functions that go on until they end, and do not count: {functions}")
        while not self._queue.empty():
            self._queue.get()
        for _ in range(self._threads):
            self._queue.put(None)

    def add(self, batch: Sequence[WorkT]) -> "Batch[EndedT]":
        """Queue this work together; when the last of it has ended, its spans are flushed."""
        added = Batch[EndedT](len(batch))
        self._asked_for = [future for future in self._asked_for if not future.done()] + added.futures
        for work, future in zip(batch, added.futures, strict=True):
            future.add_done_callback(added.one_ended)
            self._queue.put((future, work))
        for _ in range(min(len(batch), self._size - self._threads)):
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()
        return added

    def wait(self) -> None:
        """Return when everything in the queue has ended."""
        concurrent.futures.wait(self._asked_for)

    def _work(self) -> None:
        waiting.set(self._waiting)
        while (entry := self._queue.get()) is not None and not self.ended:
            future, work = entry
            self._count(1)
            try:
                future.set_result(self._run(work))
            except BaseException as error:  # any exception, because the run waits for the future
                _log.exception("an attempt could not be run")
                future.set_exception(error)
            finally:
                self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._running += change


class Batch(Generic[EndedT]):
    """Work that was queued together."""

    def __init__(self, size: int) -> None:
        self.futures: list[Future[EndedT]] = [Future() for _ in range(size)]
        self._left = size
        self._lock = threading.Lock()

    def one_ended(self, future: Future[EndedT]) -> None:
        """Count one as ended; the last one flushes the client's spans to the daemon."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            lt.flush(_FLUSH_S)
