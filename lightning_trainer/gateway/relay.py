"""A streamed response on its way from the engine to the caller, chunk by chunk, as soon as each arrives.

The record is committed before the chunk that ends the last choice goes out, so also before ``[DONE]``: whoever has
read the end of a response finds it in the store. A caller who hangs up cancels the engine's request, and what had
been sampled by then is recorded as incomplete.
"""

import logging
from collections.abc import Callable, Mapping

import httpx
import orjson
from fastapi import Response
from starlette.types import Receive, Scope, Send

from lightning_trainer.gateway.disconnect import CallerGoneError, unless_gone
from lightning_trainer.gateway.errors import RefusalError, unavailable
from lightning_trainer.gateway.exchange import Exchange
from lightning_trainer.gateway.hiding import carries_only_tokens, restore
from lightning_trainer.gateway.sse import DONE, data_of, event_of, events

logger = logging.getLogger(__name__)


class RelayResponse(Response):
    """Streams the engine's answer; owns the engine's response and closes it however this ends.

    Args:
        ended: called once, at the very end.
    """

    media_type = "text/event-stream"

    def __init__(
        self, upstream: httpx.Response, exchange: Exchange, *, headers: Mapping[str, str], ended: Callable[[], None]
    ) -> None:
        super().__init__(None, upstream.status_code, dict(headers))
        del self.headers["content-length"]
        self._upstream = upstream
        self._exchange = exchange
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._relay(send))
        except CallerGoneError:
            logger.info("the caller of %s hung up; the engine's request is cancelled", self._exchange.request.model)
        finally:
            try:
                await self._upstream.aclose()
                await self._exchange.commit_interrupted("the caller disconnected")
            finally:
                self._ended()

    async def _relay(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in events(self._upstream.aiter_bytes()):
                if (passed_on := await self._pass_on(event)) is not None:
                    await send({"type": "http.response.body", "body": passed_on, "more_body": True})
            if not self._exchange.settled:
                raise unavailable("the engine's answer ended early")
        except httpx.TransportError as error:
            await self._exchange.commit_interrupted(f"the engine went away: {type(error).__name__}")
            await _send_error(send, unavailable(f"the engine went away in the middle of the answer ({error})"))
        except RefusalError as refusal:
            await self._exchange.commit_interrupted(str(refusal))
            await _send_error(send, refusal)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_on(self, event: bytes) -> bytes | None:
        data = data_of(event)
        if data is None:
            return event
        exchange = self._exchange
        if data == DONE:
            await exchange.commit()
            return event
        chunk = orjson.loads(data)
        exchange.transcript.add_chunk(chunk)
        if exchange.transcript.complete:
            await exchange.commit()
        if carries_only_tokens(chunk, exchange.request):
            return None
        restore(chunk, exchange.request)
        return event_of(orjson.dumps(chunk))


async def _send_error(send: Send, refusal: RefusalError) -> None:
    # The status line is long gone; OpenAI clients raise on a chunk with "error".
    await send({"type": "http.response.body", "body": event_of(orjson.dumps(refusal.body)), "more_body": True})
