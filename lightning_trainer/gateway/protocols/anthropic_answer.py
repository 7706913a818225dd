"""Chat completions as Anthropic Messages: the whole message, and the events of a stream as each piece arrives; and the
list of models.

Token counts are those of the exact ids.
Source: Anthropic API reference, Messages and its streaming events, Models, version 2023-06-01.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from lightning_instrumentation.wire.decoding import read_json

from lightning_trainer.gateway.engine.sse import event_of
from lightning_trainer.gateway.engine.transcript import Transcript
from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.protocols.anthropic_request import error_body
from lightning_trainer.gateway.request import write_json

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
_SIGNATURE = "lightning-trainer"
"""Signs every thought. Nothing checks it, but clients take a thought without a signature for another provider's, and
send it back as words of the user or not at all."""


def model_info(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model of OpenAI's list as Anthropic's clients read it."""
    created = datetime.fromtimestamp(model["created"], UTC).isoformat()
    named = {"id": model["id"], "display_name": model["id"]}
    return {"type": "model", **named, "created_at": created, "lifecycle": "active"}


def model_page(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return all models of OpenAI's list as the only page of Anthropic's."""
    ids = [model["id"] for model in models] or [None]
    return {"data": [model_info(model) for model in models], "has_more": False, "first_id": ids[0], "last_id": ids[-1]}


class AnthropicAnswer:
    """One message; ``max_tokens`` is the limit that its call, or the rollout's URL, set."""

    def __init__(self, model: str, transcript: Transcript, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._transcript = transcript
        self._started = False
        self._blocks = 0
        self._open: tuple[str, int | None] | None = None
        """Kind of the open content block, and which tool call it is."""
        self._stop_sequence: str | None = None

    def whole(self, raw: bytes, document: dict[str, Any]) -> bytes:
        choice = document["choices"][0]
        message = choice.get("message") or {}
        content: list[dict[str, Any]] = []
        if message.get("reasoning"):
            content.append({"type": "thinking", "thinking": message["reasoning"], "signature": _SIGNATURE})
        if message.get("content"):
            content.append({"type": "text", "text": message["content"]})
        for index, call in enumerate(message.get("tool_calls") or ()):
            content.append({**_tool_use(call, index), "input": _arguments(call)})
        self._note_stop(choice)
        return write_json({**self._message(), **self._stop(), "content": content})

    def chunk(self, event: bytes, chunk: dict[str, Any]) -> bytes:
        if chunk.get("error"):
            return event_of(orjson.dumps(error_body(500, chunk)), "error")
        out: list[bytes] = []
        if not self._started:
            self._started = True
            out += [_event("message_start", message=self._message()), _event("ping")]
        for choice in chunk.get("choices") or ():
            out += self._grow(choice.get("delta") or {})
            self._note_stop(choice)
        return b"".join(out)

    def end(self, event: bytes) -> bytes:
        if self._transcript.error is not None:
            return b""  # the error ended the stream
        # Some clients read the usage at the beginning, others only here.
        stopped = _event("message_delta", delta=self._stop(), usage=self._usage())
        return b"".join([*self._close(), stopped, _event("message_stop")])

    def broken(self, refusal: RefusalError) -> bytes:
        return event_of(orjson.dumps(error_body(refusal.status, refusal.body)), "error")

    def _grow(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        if delta.get("reasoning"):
            yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta(type="thinking_delta", thinking=delta["reasoning"])
        if delta.get("content"):
            yield from self._begin("text", {"type": "text", "text": ""})
            yield self._delta(type="text_delta", text=delta["content"])
        for position, call in enumerate(delta.get("tool_calls") or ()):
            index = call.get("index", position)
            yield from self._begin("tool_use", _tool_use(call, index), index)
            if arguments := (call.get("function") or {}).get("arguments"):
                yield self._delta(type="input_json_delta", partial_json=arguments)

    def _begin(self, kind: str, block: dict[str, Any], tool_index: int | None = None) -> Iterator[bytes]:
        if self._open == (kind, tool_index):
            return
        yield from self._close()
        self._open = (kind, tool_index)
        yield _event("content_block_start", index=self._blocks, content_block=block)

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            if self._open[0] == "thinking":
                yield self._delta(type="signature_delta", signature=_SIGNATURE)
            yield _event("content_block_stop", index=self._blocks)
            self._blocks += 1
            self._open = None

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def _note_stop(self, choice: Mapping[str, Any]) -> None:
        # vLLM names the stop string that ended the text; a number is a stop token.
        if isinstance(choice.get("stop_reason"), str):
            self._stop_sequence = choice["stop_reason"]

    def _stop(self) -> dict[str, Any]:
        choice = self._transcript.choices.get(0)
        reason = _STOP_REASONS.get((choice.finish_reason if choice else None) or "", "end_turn")
        if reason == "end_turn" and choice is not None and choice.tool_calls:
            reason = "tool_use"  # in chat completions, an answer that had to call a certain tool ends with "stop"
        if self._stop_sequence is not None and reason == "end_turn":
            reason = "stop_sequence"
        if reason == "max_tokens" and self._transcript.output_tokens < self._max_tokens:
            reason = "model_context_window_exceeded"  # the context had room for fewer tokens than the limit
        return {"stop_reason": reason, "stop_sequence": self._stop_sequence}

    def _message(self) -> dict[str, Any]:
        return {
            "id": self._transcript.response_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, int]:
        return {
            "input_tokens": len(self._transcript.prompt_ids),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": self._transcript.output_tokens,
        }


def _tool_use(call: Mapping[str, Any], index: int) -> dict[str, Any]:
    name = (call.get("function") or {}).get("name") or ""
    return {"type": "tool_use", "id": call.get("id") or f"toolu_{index}", "name": name, "input": {}}


def _arguments(call: Mapping[str, Any]) -> Any:
    text = (call.get("function") or {}).get("arguments") or "{}"
    try:
        return read_json(text.encode(errors="surrogatepass"))
    except ValueError:
        return {"invalid_json": text}  # the model's mistake: the agent should see it


def _event(name: str, /, **fields: Any) -> bytes:
    return event_of(orjson.dumps({"type": name, **fields}), name)
