"""A candidate served alongside the live version, as any old version is."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lightning_trainer.daemon.publication.old_adapters import OldAdapters
from lightning_trainer.daemon.publication.old_versions import Lease, OldVersionBusyError, OldVersionEngine
from lightning_trainer.errors import EngineError
from lightning_trainer.serving.publication import Publication

_LOOK_AGAIN_S = 1.0


@asynccontextmanager
async def serve_candidate(
    old_versions: OldVersionEngine | OldAdapters, candidate: Publication, timeout_s: float
) -> AsyncIterator[None]:
    """Answer calls for the candidate while the block runs; no other version can take its engine meanwhile.

    Raises:
        EngineError: the candidate cannot be served within the time.
        PublicationError: its weights cannot be kept.
    """
    await asyncio.to_thread(old_versions.archive.add, candidate)
    lease = await _lease(old_versions, candidate, timeout_s)
    try:
        await lease.upstream.ready(timeout_s)
        yield
    finally:
        lease.release()
        await old_versions.let_go(candidate.version)


async def _lease(old_versions: OldVersionEngine | OldAdapters, candidate: Publication, timeout_s: float) -> Lease:
    give_up = time.monotonic() + timeout_s
    while True:
        try:
            lease = await old_versions.lease(candidate.version)
        except OldVersionBusyError:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(_LOOK_AGAIN_S)
            continue
        if lease is None:
            raise EngineError(f"{candidate.name} was not stored")
        return lease
