"""The store of a stopped run: every question opens it for reading, so nothing is written and nobody is kept out."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from lightning_trainer.store.connection import Connection
from lightning_trainer.store.places import StorePlace, reading
from lightning_trainer.store.tables import spans as span_table

Result = TypeVar("Result")


class StoppedStore:
    """Raises StoreError where it is not there or is not a store."""

    def __init__(self, place: StorePlace) -> None:
        self._place = place

    async def last_span(self) -> int:
        return await self.scan(span_table.last)

    async def scan(self, query: Callable[[Connection], Result]) -> Result:
        def read() -> Result:
            with reading(self._place) as connection:
                return query(connection)

        return await asyncio.to_thread(read)
