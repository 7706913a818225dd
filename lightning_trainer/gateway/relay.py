"""A streamed response, relayed from the engine to the caller chunk by chunk.

The record is committed before the chunk that ends the last choice goes out, and so before the end of the stream: a
caller that has read the end of a response finds its record in the store. A caller that hangs up cancels the engine's
request, and the tokens sampled so far are recorded as incomplete.
"""

import logging
from collections.abc import Callable, Mapping

import orjson
from fastapi import Response
from lightning_instrumentation.wire.sse import data_of
from starlette.types import Receive, Scope, Send

from lightning_trainer.errors import EngineError
from lightning_trainer.gateway.calls.disconnect import CallerGoneError, unless_gone
from lightning_trainer.gateway.calls.exchange import Exchange
from lightning_trainer.gateway.engine.response import EngineResponse
from lightning_trainer.gateway.engine.sse import DONE, events, support_in
from lightning_trainer.gateway.errors import RefusalError, made_again, unavailable
from lightning_trainer.gateway.protocols.registry import Answer

logger = logging.getLogger(__name__)
_UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Makes nginx, and other proxies that heed these headers, pass every chunk on as it comes."""


class RelayResponse(Response):
    """Streams the engine's answer; owns the engine's response, and closes it however the stream ends.

    Args:
        ended: called once, at the very end.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        upstream: EngineResponse,
        exchange: Exchange,
        answer: Answer,
        *,
        headers: Mapping[str, str],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(None, upstream.status, {**headers, **_UNBUFFERED})
        del self.headers["content-length"]
        self._upstream = upstream
        self._exchange = exchange
        self._answer = answer
        self._ended = ended
        self._begun = False
        self._delivered = False
        """Whether everything that the engine sampled was sent: many clients hang up without waiting for the stream's
        end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = "the caller disconnected"
        abandoned = self._exchange.call_record.abandoned
        try:
            await unless_gone(receive, abandoned, self._relay(send))
            gone = ""
        except CallerGoneError as error:
            gone = str(error)
            logger.info("%s: the engine's request for %s is cancelled", gone, self._exchange.request.model)
            if abandoned.done() and self._begun:
                last = self._answer.broken(made_again())
                await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            try:
                self._upstream.close()
                if gone and not self._delivered:
                    await self._exchange.end_without_caller(gone)
            finally:
                self._ended()

    async def _relay(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._begun = True
        last = b""
        try:
            async for whole in events(self._upstream.pieces()):
                await self._pass_on(whole, send)
            if not self._exchange.call_record.written:
                raise unavailable("the engine's answer ended early")
        except (EngineError, orjson.JSONDecodeError) as error:
            refusal = unavailable(f"the engine went away in the middle of the answer ({error})")
            last = await self._break_off(f"the engine went away: {error}", refusal)
        except RefusalError as refusal:
            last = await self._break_off(str(refusal), refusal)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _pass_on(self, whole: list[bytes], send: Send) -> None:
        """Send everything that arrived together as one chunk; the end of the answer waits for its record, the rest does
        not."""
        ready: list[bytes] = []
        exchange = self._exchange
        for event in whole:
            data = data_of(event)
            if not data:  # a comment that keeps the connection alive
                ready.append(event)
                continue
            if (said := support_in(data)) is not None:
                exchange.transcript.add_supports(said)
                continue
            chunk = None
            if data != DONE:
                chunk = orjson.loads(data)
                exchange.transcript.add(chunk)
            if (chunk is None or exchange.transcript.complete) and not exchange.call_record.written:
                await _send(send, ready)
                ready = []
                await exchange.commit()
            ready.append(self._answer.end(event) if chunk is None else self._answer.chunk(event, chunk))
        await _send(send, ready)
        self._delivered = exchange.call_record.written

    async def _break_off(self, reason: str, refusal: RefusalError) -> bytes:
        await self._exchange.end_without_caller(reason)
        return self._answer.broken(refusal)


async def _send(send: Send, ready: list[bytes]) -> None:
    if body := b"".join(ready):
        await send({"type": "http.response.body", "body": body, "more_body": True})
