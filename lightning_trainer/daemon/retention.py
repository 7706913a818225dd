"""Has the store delete what is too old or was used, a slice at a time; its size it keeps by itself."""

import asyncio
import logging
import time

from lightning_trainer.errors import StoreError
from lightning_trainer.store.sqlite import SqliteStore

_log = logging.getLogger(__name__)

_EVERY_S = 60.0
_REST = 4.0
"""Times as long as a slice took, until the next one: others write, too."""


async def keep_within_limits(store: SqliteStore, *, every_s: float = _EVERY_S) -> None:
    """For ever; a store that cannot be written is tried again."""
    while True:
        try:
            store.retention.begin_sweep()
            more = True
            while more:
                began = time.monotonic()
                more = await store.sweep()
                await asyncio.sleep(_REST * (time.monotonic() - began))
        except StoreError as error:
            _log.warning("nothing could be deleted from the store: %s", error)
        await asyncio.sleep(every_s)
