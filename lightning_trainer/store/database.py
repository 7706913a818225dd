"""A store's database: its writer, its readers, and its journal; subclasses open and release it."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Self, TypeVar

from lightning_trainer.errors import StoreError
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.retention.retention import Retention
from lightning_trainer.store.scan import ReaderPool
from lightning_trainer.store.tables import totals
from lightning_trainer.store.upkeep.journal import Journal
from lightning_trainer.store.writer import GroupCommitWriter

_TRIED = "tried"
Result = TypeVar("Result")


class Database(ABC):
    """A store's database. Use it as an async context manager, or call :meth:`open` and :meth:`close`."""

    def __init__(self, name: str, retention: Retention) -> None:
        """Set the store up; :meth:`open` opens it.

        Args:
            name: for display: a path, or a URL without its password.
            retention: the limits of the store.
        """
        self.name = name
        self.retention = retention
        self._writer: GroupCommitWriter | None = None
        self._readers: ReaderPool | None = None
        self._journal: Journal | None = None
        self.write_failure: str | None = None
        """Why the newest spans could not be written, in which case no model call is answered; None: they were written.
        """

    @abstractmethod
    def _open(self) -> tuple[GroupCommitWriter, ReaderPool]:
        """Create or open the database and migrate it to the newest schema; runs in a thread."""

    @abstractmethod
    def _release(self) -> None:
        """Release the database, whose writer and readers are closed already."""

    async def open(self) -> Self:
        """Create or open the database and migrate it to the newest schema.

        Raises:
            StoreError: it cannot be opened, another daemon has it exclusively, or a newer lightning-trainer wrote it.
        """
        if self._writer is not None:
            raise StoreError(f"the store {self.name} is already open")

        def opened() -> tuple[GroupCommitWriter, ReaderPool]:
            if self.retention.config.journal is not None:
                self._journal = Journal(self.retention.config.journal)
            return self._open()

        try:
            self._writer, self._readers = await asyncio.to_thread(opened)
        except BaseException:
            self._close_journal()
            raise
        return self

    async def close(self) -> None:
        """Commit what is queued and release the database; closing twice does nothing."""
        writer, readers = self._writer, self._readers
        self._writer = self._readers = None
        if writer is not None and readers is not None:
            await asyncio.to_thread(self._close, writer, readers)

    def _close(self, writer: GroupCommitWriter, readers: ReaderPool) -> None:
        readers.close()
        writer.close()
        self._close_journal()
        self._release()

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def scan(self, query: Callable[[Connection], Result]) -> Result:
        """Run a caller's long query (see ``scan.py``) in a reader's thread, on one snapshot."""
        return await self._read(query)

    async def write(self, operation: Callable[[Connection], Result]) -> Result:
        """Run a caller's short operation in the writer's thread; returns after its commit."""
        return await self._write(operation)

    async def erase(self, operation: Callable[[Connection], Result]) -> Result:
        """Like :meth:`write`, for an operation that deletes what must not remain in free space either, if the database
        leaves it to us to overwrite that space."""
        return await self._write(operation)

    async def try_to_write(self) -> None:
        """Write something and delete it again, to learn whether the store can be written: while it cannot, clients are
        refused, and so send no span that would show that it can be again.

        Raises:
            StoreError: the store cannot be written.
        """

        def leave_no_trace(connection: Connection) -> None:
            totals.add(connection, {_TRIED: 1})
            connection.execute("DELETE FROM totals WHERE name = ?", (_TRIED,))

        with self._noting_failure():
            if self._journal is not None:
                await asyncio.to_thread(self._journal.append, ())
            await self._write(leave_no_trace)

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self.write_failure = str(error)
            raise
        self.write_failure = None

    async def _write(self, operation: Callable[[Connection], Result]) -> Result:
        if self._writer is None:
            raise StoreError(f"the store {self.name} is not open")
        return await asyncio.wrap_future(self._writer.submit(operation))

    async def _read(self, query: Callable[[Connection], Result]) -> Result:
        if self._readers is None:
            raise StoreError(f"the store {self.name} is not open")
        return await self._readers.run(query)
