"""One call on its way through the gateway: who asked what, what came back, and its record.

The record is committed before the caller can see the end of the response. A call that cannot be recorded is not
answered: tokens of a policy that went out unrecorded would be missing from the ledger without a trace.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field

from lightning_trainer.errors import MalformedTelemetryError, StoreError
from lightning_trainer.gateway.errors import RefusalError, unavailable
from lightning_trainer.gateway.identity import Caller
from lightning_trainer.gateway.record import Sampler, record_of
from lightning_trainer.gateway.request import ChatRequest
from lightning_trainer.gateway.transcript import Transcript
from lightning_trainer.types import Span, SpanSink

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Exchange:
    """State of one call; ``transcript`` and ``sampler`` fill up as the engine answers."""

    request: ChatRequest
    caller: Caller
    sampler: Sampler
    sink: SpanSink
    start_ns: int = field(default_factory=time.time_ns)
    transcript: Transcript = field(init=False)
    _recording: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.transcript = Transcript(self.request.choices)

    @property
    def settled(self) -> bool:
        """Whether the record was handed to the store, whatever came of it."""
        return self._recording is not None

    async def commit(self, *, interrupted: str | None = None) -> None:
        """Make the record durable, once; later calls wait for the same outcome.

        Raises:
            RefusalError: the store could not; 503.
        """
        if self._recording is None:
            record = record_of(
                self.request,
                self.caller,
                self.sampler,
                self.transcript,
                start_ns=self.start_ns,
                interrupted=interrupted,
            )
            self._recording = asyncio.create_task(self._record(record))
        # A caller who hangs up now must not take the record with him.
        await asyncio.shield(self._recording)

    async def commit_interrupted(self, reason: str) -> None:
        """Record what there is of a call that ended early; there is nobody left to refuse."""
        with contextlib.suppress(RefusalError):
            await self.commit(interrupted=reason)

    async def _record(self, record: Span) -> None:
        try:
            await self.sink.append([record])
        except (StoreError, MalformedTelemetryError) as error:
            logger.error("a call could not be recorded, so it is not answered: %s", error)
            raise unavailable(
                f"the call was made but could not be recorded, so its answer is withheld: {error}"
            ) from error
