"""Chat completions and completions: the engine's answer without fields that the caller did not ask for."""

import json
from typing import Any

import orjson

from lightning_trainer.gateway.engine.sse import event_of
from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.protocols.response_filter import carries_only_tokens, hides_nothing, restore
from lightning_trainer.gateway.request import EngineRequest


class OpenAIAnswer:
    """Passes the engine's bytes through unless a field has to be hidden; restores the model name of a versioned
    adapter."""

    def __init__(self, request: EngineRequest, served_name: str) -> None:
        self._request = request
        self._as_it_is = hides_nothing(request, served_name)

    def whole(self, raw: bytes, document: dict[str, Any]) -> bytes:
        if self._as_it_is and document.get("model") == self._request.model:
            return raw
        restore(document, self._request)
        # The engine's own encoder is used because orjson formats small floats differently.
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def chunk(self, event: bytes, chunk: dict[str, Any]) -> bytes:
        if self._as_it_is and chunk.get("model") == self._request.model:
            return event
        if carries_only_tokens(chunk, self._request):
            return b""
        restore(chunk, self._request)
        return event_of(orjson.dumps(chunk))

    def end(self, event: bytes) -> bytes:
        return event

    def broken(self, refusal: RefusalError) -> bytes:
        # The status line has already been sent; OpenAI clients raise on a chunk with "error".
        return event_of(orjson.dumps(refusal.body))
