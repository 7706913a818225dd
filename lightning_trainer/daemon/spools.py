"""Spans that agents of this machine left on disk: the daemon delivers them when the agent's process is gone."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from lightning_instrumentation.delivery.spool import Spool, endpoint_folder, orphans_in, owned_folders
from lightning_instrumentation.errors import ConfigurationError
from lightning_instrumentation.settings import default_spool_dir

from lightning_trainer.errors import LightningError, MalformedTelemetryError, StoreError
from lightning_trainer.ingest.http.otlp import decode_request
from lightning_trainer.types import SpanSink

_log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 5.0
_BATCH = 500
_SURPRISES = 3
"""After so many looks in a row that ended in an unexpected error, the contents of the spools are doubted."""


async def drain_spools(endpoint: str, sink: SpanSink, owners: Sequence[str] = ()) -> None:
    """Take over spools whose process has died, commit their spans and then delete them, forever.

    Log a warning and return at once if this user has no folder for spools.

    Args:
        owners: names under which spans wait for this daemon, whatever address it listened on.
    """
    try:
        spool_dir = default_spool_dir()
    except ConfigurationError as error:
        _log.warning("spans that agents left on disk are not looked for: %s", error)
        return
    surprises = 0
    while True:
        try:
            for spool in await asyncio.to_thread(_orphans, spool_dir, endpoint, owners):
                with spool:
                    while bodies := await asyncio.to_thread(spool.read, _BATCH):
                        await _deliver(bodies, sink, spool, doubted=surprises >= _SURPRISES)
                        await asyncio.to_thread(spool.forget, bodies)
            surprises = 0
        except (OSError, StoreError) as error:
            _log.warning("spooled spans could not be taken over (%s); trying again", error)
        except Exception:
            surprises += 1
            _log.exception("spooled spans could not be taken over because of an unexpected error; trying again")
        await asyncio.sleep(_LOOK_AGAIN_S)


def _orphans(spool_dir: Path, endpoint: str, owners: Sequence[str]) -> list[Spool]:
    return orphans_in([endpoint_folder(spool_dir, endpoint), *owned_folders(spool_dir, owners)])


async def _deliver(bodies: Sequence[bytes], sink: SpanSink, spool: Spool, *, doubted: bool) -> None:
    """Commit what can be stored: find a body that cannot be, put it aside, and commit the others of its batch.

    Args:
        doubted: whether an unexpected error is blamed on a body, too.
    """
    try:
        await sink.append([span for body in bodies for span in decode_request(body).spans])
    except (OSError, StoreError):
        raise
    except Exception as error:
        if not (doubted or isinstance(error, MalformedTelemetryError)):
            raise
        if len(bodies) == 1:
            reason = str(error) if isinstance(error, LightningError) else f"{type(error).__name__}: {error}"
            _log.error("a spooled request cannot be stored and is put aside in %s: %s", spool.rejected_path, reason)
            await asyncio.to_thread(spool.put_aside, bodies[0], reason)
            return
        middle = len(bodies) // 2
        await _deliver(bodies[:middle], sink, spool, doubted=doubted)
        await _deliver(bodies[middle:], sink, spool, doubted=doubted)
