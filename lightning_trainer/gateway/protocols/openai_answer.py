"""Chat completions and completions: the engine's answer, without what the caller did not ask for.

vLLM always writes the fields of token ids and log-probabilities, and leaves them null unless asked for. So they become
null again if the caller did not ask for them; absent fields stay absent. In a stream vLLM sends chunks with an empty
delta only to carry ids or log-probabilities; those are left out. Usage is never asked for on the caller's behalf (the
exact ids give the counts), so there is none to hide. If the caller asked for it, the number of reasoning tokens in it
is ours: with some parsers, the engine's is 0.
"""

import json
from typing import Any

import orjson

from lightning_trainer.gateway.engine.sse import event_of
from lightning_trainer.gateway.engine.transcript import Transcript
from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.request import EngineRequest


class OpenAIAnswer:
    """Passes the engine's bytes through unless a field has to be hidden; restores the model name of a versioned
    adapter."""

    def __init__(self, request: EngineRequest, transcript: Transcript, served_name: str) -> None:
        self._request = request
        self._transcript = transcript
        self._as_it_is = _hides_nothing(request, served_name)

    def whole(self, raw: bytes, document: dict[str, Any]) -> bytes:
        counted = self._count_reasoning(document)
        if self._as_it_is and document.get("model") == self._request.model and not counted:
            return raw
        _restore(document, self._request)
        # The engine's own encoder is used because orjson formats small floats differently.
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def chunk(self, event: bytes, chunk: dict[str, Any]) -> bytes:
        counted = not chunk.get("choices") and self._count_reasoning(chunk)
        if self._as_it_is and chunk.get("model") == self._request.model and not counted:
            return event
        if _carries_only_tokens(chunk, self._request):
            return b""
        _restore(chunk, self._request)
        return event_of(orjson.dumps(chunk))

    def end(self, event: bytes) -> bytes:
        return event

    def broken(self, refusal: RefusalError) -> bytes:
        # The status line has already been sent; OpenAI clients raise on a chunk with "error".
        return event_of(orjson.dumps(refusal.body))

    def _count_reasoning(self, document: dict[str, Any]) -> bool:
        """Put the number of reasoning tokens into the usage; return whether that changed it."""
        if not (usage := document.get("usage")) or not (tokens := self._transcript.reasoning_tokens):
            return False
        details = usage.get("completion_tokens_details") or {}
        if details.get("reasoning_tokens") == tokens:
            return False
        usage["completion_tokens_details"] = {**details, "reasoning_tokens": tokens}
        return True


def _restore(document: dict[str, Any], request: EngineRequest) -> None:
    """Rewrite a response or a chunk in place: model as the caller named it, nothing that was not asked for."""
    if "model" in document:
        document["model"] = request.model
    choices = document.get("choices") or ()
    if not request.asked_token_ids:
        _blank(document, "prompt_token_ids")
        for choice in choices:
            _blank(choice, "token_ids")
            _blank(choice, "prompt_token_ids")
    if not request.asked_logprobs:
        for choice in choices:
            _blank(choice, "logprobs")


def _hides_nothing(request: EngineRequest, served_name: str) -> bool:
    """Whether the engine's bytes can go out as they are."""
    return request.asked_token_ids and request.asked_logprobs and request.model == served_name


def _carries_only_tokens(chunk: dict[str, Any], request: EngineRequest) -> bool:
    """Whether a chunk exists only because ids and log-probabilities were asked for; call it before `_restore`."""
    if request.asked_token_ids or request.asked_logprobs:
        return False
    choices = chunk.get("choices")
    return bool(choices) and all(
        choice.get("delta") == {} and choice.get("finish_reason") is None and _has_tokens(choice) for choice in choices
    )


def _has_tokens(choice: dict[str, Any]) -> bool:
    return choice.get("token_ids") is not None or choice.get("logprobs") is not None


def _blank(holder: dict[str, Any], name: str) -> None:
    if name in holder:
        holder[name] = None
