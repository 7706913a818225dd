"""How a call ends in the store: its record, written once, and later changes to its status.

Small on purpose: this object outlives the call (``retries.py``); its tokens and messages do not.
"""

import asyncio
import logging

from lightning_trainer.errors import MalformedTelemetryError, StoreError
from lightning_trainer.gateway.calls.span import abandonment_of, without_content
from lightning_trainer.gateway.errors import RefusalError, unavailable
from lightning_trainer.types import Span, SpanSink, SpanStatus

logger = logging.getLogger(__name__)


class CallRecord:
    """The record of a call in progress, until ``write``; ``abandon`` may come before or after."""

    def __init__(self, sink: SpanSink) -> None:
        self._sink = sink
        self._recording: asyncio.Task[None] | None = None
        self._complete: Span | None = None
        self.abandoned: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved when the caller no longer wants this answer; the result is the reason."""

    @property
    def written(self) -> bool:
        """Whether the record was handed to the store, whether or not that succeeded."""
        return self._recording is not None

    async def write(self, record: Span) -> None:
        """Make the record durable.

        Raises:
            RefusalError: the store could not write it; 503.
        """
        if record.status is SpanStatus.OK:
            self._complete = without_content(record)
        self._recording = asyncio.create_task(self._append(record))
        await self.wait_written()

    async def wait_written(self) -> None:
        """Wait for the record that is being written; raises the same error as the write."""
        assert self._recording is not None
        # If the caller hangs up now, canceling it must not cancel the write.
        await asyncio.shield(self._recording)

    async def abandon(self, reason: str) -> None:
        """Give the call up because its caller will not use the answer: stop the work, and record it as interrupted.

        Raises:
            RefusalError: the store could not record the interruption; 503.
        """
        if self.abandoned.done():
            return
        self.abandoned.set_result(reason)
        if self._complete is None:
            return  # the record, written now or later, is an interrupted call
        try:
            await self.wait_written()
        except RefusalError:
            return  # there is no record, and the answer was withheld
        await asyncio.shield(asyncio.create_task(self._append(abandonment_of(self._complete, reason))))

    async def _append(self, span: Span) -> None:
        try:
            await self._sink.append([span])
        except (StoreError, MalformedTelemetryError) as error:
            logger.error("a call could not be recorded, so it is not answered: %s", error)
            raise unavailable(
                f"the call was made but could not be recorded, so its answer is withheld: {error}"
            ) from error
