"""One call on its way through the gateway: its request, its answer, and its record.

The record is committed before the caller can see the end of the response. A call that cannot be recorded is not
answered: tokens that a policy sampled but that went out unrecorded would be missing from the ledger without a trace. A
call that its caller gave up is recorded as interrupted; if its record was already complete, a second span takes that
back.
"""

import contextlib
import time
from dataclasses import dataclass, field

from lightning_instrumentation.wire.chat import ChatAnswer
from lightning_instrumentation.wire.completions import CompletionAnswer

from lightning_trainer.gateway.caller import Caller
from lightning_trainer.gateway.calls.call_record import CallRecord
from lightning_trainer.gateway.calls.span import Sampler, record_of
from lightning_trainer.gateway.engine.transcript import Transcript
from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.request import EngineApi, EngineRequest

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
            RefusalError: the store could not write it; 503.
        """
        call_record = self.call_record
        if call_record.written:
            return await call_record.wait_written()
        if call_record.abandoned.done():
            interrupted = interrupted or call_record.abandoned.result()
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
