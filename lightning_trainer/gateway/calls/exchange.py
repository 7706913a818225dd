"""One call on its way through the gateway: its request, its answer, and its record.

The record is committed before the caller can see the end of the response. A call that cannot be recorded is not
answered: tokens that a policy sampled but that went out unrecorded would be missing from the ledger without a trace. A
call that its caller gave up is recorded as interrupted; if its record was already complete, a second span takes that
back. ``CallRecord`` is small on purpose: it outlives the call (``retries.py``), whose tokens and messages do not.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field

from lightning_instrumentation.wire.chat import ChatAnswer
from lightning_instrumentation.wire.completions import CompletionAnswer

from lightning_trainer.errors import MalformedTelemetryError, StoreError
from lightning_trainer.gateway.caller import Caller
from lightning_trainer.gateway.calls.span import Sampler, abandonment_of, record_of, without_content
from lightning_trainer.gateway.engine.transcript import Transcript
from lightning_trainer.gateway.errors import RefusalError, unavailable
from lightning_trainer.gateway.request import EngineApi, EngineRequest
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


_READERS = {EngineApi.CHAT: ChatAnswer, EngineApi.COMPLETIONS: CompletionAnswer}


@dataclass(slots=True)
class Exchange:
    """State of one call; ``transcript`` and ``sampler`` fill up as the engine answers."""

    request: EngineRequest
    caller: Caller
    sampler: Sampler
    call_record: CallRecord
    start_ns: int = field(default_factory=time.time_ns)
    transcript: Transcript = field(init=False)

    def __post_init__(self) -> None:
        self.transcript = Transcript(self.request.choices, self.request.id_prefix, _READERS[self.request.api]())

    async def commit(self, *, interrupted: str | None = None) -> None:
        """Make the record durable, once; later calls wait for the same outcome.

        Raises:
            RefusalError: the store could not write it (503), or the engine gave no token ids (502).
        """
        call_record = self.call_record
        if call_record.written:
            return await call_record.wait_written()
        if call_record.abandoned.done():
            interrupted = interrupted or call_record.abandoned.result()
        if interrupted is None and self.transcript.hidden:
            message = "the engine gave no token ids of its answer, so it cannot be recorded and is withheld"
            raise RefusalError(502, message, kind="engine_error")
        if interrupted is None and self.request.id_prefix is not None and self.transcript.cut_off:
            # The translated APIs have no finish reason for this, as the engine's own have ("abort").
            await self.commit(interrupted="the engine cut the answer off")
            raise unavailable("the answer was cut off, as new weights were loaded; make the call again")
        await call_record.write(
            record_of(
                self.request,
                self.caller,
                self.sampler,
                self.transcript,
                start_ns=self.start_ns,
                interrupted=interrupted,
            )
        )

    async def end_without_caller(self, reason: str) -> None:
        """End a call whose caller is gone: record what there is as interrupted, or take a complete record back."""
        with contextlib.suppress(RefusalError):
            if self.call_record.written:
                await self.call_record.abandon(reason)
            else:
                await self.commit(interrupted=reason)
