"""The single writer: a thread that commits everything queued as one transaction (group commit).

Invariant: a future resolves only after the commit of its operation. With ``synchronous=FULL`` in WAL mode the commit
has been fsynced by then, so what was acknowledged survives ``kill -9`` and a power failure. Each operation runs in its
own savepoint, so that an operation that is refused does not affect the others of its group.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lightning_trainer.errors import LightningError, StoreError
from lightning_trainer.store.connection import Connection

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(slots=True)
class _Operation:
    run: Callable[[Connection], Any]
    future: Future = field(default_factory=Future)
    result: Any = None
    error: Exception | None = None


class GroupCommitWriter:
    """Serializes the writes on one connection, which it owns from then on.

    Args:
        connection: in autocommit mode (``isolation_level=None``), usable from another thread.
        max_group: maximum number of operations in one transaction.
        after_commit: called after each transaction, outside it; only the next transaction waits for it.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        max_group: int = 256,
        after_commit: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._after_commit = after_commit
        self._max_group = max_group
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._closed = False
        self._submitting = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[Connection], Result]) -> "Future[Result]":
        """Queue an operation; the future resolves after its commit.

        Raises:
            StoreError: the store is closed.
        """
        operation = _Operation(run)
        with self._submitting:
            if self._closed:
                raise StoreError("the store is closed; nothing more can be written to it")
            self._queue.put(operation)
        return operation.future

    def close(self) -> None:
        """Commit what is queued, close the connection, and end the thread."""
        with self._submitting:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        last = False
        while not last:
            group, last = self._next_group()
            if group:
                self._commit(group)
        self._connection.close()

    def _next_group(self) -> tuple[list[_Operation], bool]:
        group: list[_Operation] = []
        head = self._queue.get()
        while head is not None:
            if head.future.set_running_or_notify_cancel():
                group.append(head)
            if len(group) >= self._max_group:
                return group, False
            try:
                head = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit(self, group: list[_Operation]) -> None:
        try:
            self._roll_back()  # in case an earlier rollback failed
            self._connection.execute("BEGIN IMMEDIATE")
            for operation in group:
                self._run(operation)
            self._connection.execute("COMMIT")
        except Exception as error:
            logger.exception("a transaction of %d operations was rolled back", len(group))
            with contextlib.suppress(Exception):  # it fails too if the connection did; the group is answered anyway
                self._roll_back()
            for operation in group:
                refused = StoreError(f"the store could not commit ({error}); nothing was written")
                refused.__cause__ = error
                operation.future.set_exception(refused)
            return
        for operation in group:
            if operation.error is None:
                operation.future.set_result(operation.result)
            else:
                operation.future.set_exception(operation.error)
        try:
            self._after_commit(self._connection)
        except Exception as error:  # the commit is done; whatever this raises, the next one must not wait forever
            logger.warning("the work after a commit failed and is retried after the next one: %s", error)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _run(self, operation: _Operation) -> None:
        self._connection.execute("SAVEPOINT operation")
        try:
            operation.result = operation.run(self._connection)
        except Exception as error:
            if not self._connection.in_transaction:
                raise  # a full disk rolls back the whole transaction by itself, and the group is refused
            self._connection.execute("ROLLBACK TO operation")
            operation.error = error if isinstance(error, LightningError) else _as_store_error(error)
        self._connection.execute("RELEASE operation")


def _as_store_error(error: Exception) -> StoreError:
    refused = StoreError(f"the store refused an operation ({type(error).__name__}: {error}); nothing of it was written")
    refused.__cause__ = error
    return refused
