"""Spans and their media, written in one transaction: no reference exists before its media.

Redelivery changes nothing, neither the spans nor the references.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.database import Database
from lightning_trainer.store.media import table
from lightning_trainer.store.media.exchange import SCHEME, Exchanged, exchange
from lightning_trainer.store.media.table import StoredMedia
from lightning_trainer.store.tables import spans
from lightning_trainer.types import Span, TrainingBatch

_FEW_BYTES = 2**16
"""Up to this many bytes are searched for media in the event loop; more in a thread, so that the loop is not blocked."""


async def exchanged_of(spans: Sequence[Span]) -> Exchanged:
    """Return the spans with references, and the media that were embedded in them."""
    if sum(map(_content_length, spans)) <= _FEW_BYTES:
        return exchange(spans)
    return await asyncio.to_thread(exchange, spans)


def _content_length(span: Span) -> int:
    if span.received is not None:
        return len(span.received)
    return sum(len(value) for value in span.attributes.values() if isinstance(value, str))


def insert_with_media(connection: Connection, exchanged: Exchanged, limits: StoreConfig) -> list[Span]:
    """Write spans like :func:`spans.insert`, with their media; return those that were new."""
    new = spans.insert(connection, exchanged.spans)
    _put_media(connection, new, exchanged, limits)
    return new


def _put_media(connection: Connection, new: Sequence[Span], exchanged: Exchanged, limits: StoreConfig) -> None:
    """Store the media of new spans, within the limits; beyond them only the reference is kept."""
    if not exchanged.media:
        return
    for span in new:
        found = exchanged.media.get((span.trace_id, span.span_id), {})
        if not found:
            continue
        (seq,) = connection.execute(
            "SELECT seq FROM spans WHERE trace_id = ? AND span_id = ?", (span.trace_id, span.span_id)
        ).fetchone()
        for embedded in found.values():
            table.put(connection, embedded, limits)
        table.use(connection, table.of_span(seq), found)


class MediaStore(Database):
    """The part of a store that holds images and the like, by the hash of their bytes."""

    async def append_made(self, make: Callable[[Connection], Sequence[Span]]) -> list[Span]:
        """Commit the spans that ``make`` returns, in one transaction with what it reads and writes; return those that
        were new.

        Args:
            make: runs in the writer's thread and must be short; its spans are few or small.

        Raises:
            StoreError: the commit failed; nothing was written.
        """

        def insert_made(connection: Connection) -> list[Span]:
            made = make(connection)
            if made and self._journal is not None:
                self._journal.append(made)
            return insert_with_media(connection, exchange(made), self.retention.config)

        return await self._write(insert_made)

    async def media(self, digests: Collection[str]) -> Mapping[str, StoredMedia]:
        """Return the stored media for some hashes, by hash."""
        return await self._read(lambda connection: table.select(connection, digests))

    async def with_media(self, batch: TrainingBatch) -> TrainingBatch:
        """Return a batch with the stored media that its samples refer to."""
        digests = table.digests_of(one for sample in batch.samples for one in sample.media)
        if not digests:
            return batch
        return replace(batch, media={f"{SCHEME}{one}": kept.body for one, kept in (await self.media(digests)).items()})

    async def media_kept(self, digests: Collection[str]) -> frozenset[str]:
        """Return those of some hashes whose bytes are stored."""
        if not digests:
            return frozenset()
        return await self._read(lambda connection: table.select_kept(connection, digests))
