"""Spans that agents of this machine left on disk: delivered by the daemon when their process is gone."""

import asyncio
import logging
from collections.abc import Sequence

from lightning_instrumentation.delivery.spool import Spool, endpoint_folder, orphans_in, owned_folders
from lightning_instrumentation.settings import default_spool_dir

from lightning_trainer.errors import MalformedTelemetryError, StoreError
from lightning_trainer.ingest.http.otlp import decode_request
from lightning_trainer.types import SpanSink

_log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 5.0
_BATCH = 500


async def drain_spools(endpoint: str, sink: SpanSink, owners: Sequence[str] = ()) -> None:
    """For ever: take over spools whose process has died and commit what they hold, then delete it.

    Args:
        owners: under which spans wait for this daemon, wherever it listened.
    """
    while True:
        try:
            for spool in await asyncio.to_thread(_orphans, endpoint, owners):
                with spool:
                    while bodies := await asyncio.to_thread(spool.read, _BATCH):
                        await _deliver(bodies, sink)
                        await asyncio.to_thread(spool.forget, bodies)
        except (OSError, StoreError) as error:
            _log.warning("spooled spans could not be taken over (%s); trying again", error)
        except Exception:
            _log.exception(
                "spooled spans could not be taken over, for a reason that nobody has thought of; trying again"
            )
        await asyncio.sleep(_LOOK_AGAIN_S)


def _orphans(endpoint: str, owners: Sequence[str]) -> list[Spool]:
    spool_dir = default_spool_dir()
    return orphans_in([endpoint_folder(spool_dir, endpoint), *owned_folders(spool_dir, owners)])


async def _deliver(bodies: Sequence[bytes], sink: SpanSink) -> None:
    """Commit what can be; a body that cannot is found and left out, and the others of its batch are committed."""
    try:
        await sink.append([span for body in bodies for span in decode_request(body).spans])
    except MalformedTelemetryError as error:
        if len(bodies) == 1:
            _log.error("a spooled span cannot be read and is left out: %s", error)
            return
        middle = len(bodies) // 2
        await _deliver(bodies[:middle], sink)
        await _deliver(bodies[middle:], sink)
