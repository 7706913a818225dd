"""Chat completions as OpenAI Responses: the whole object, and the events of a stream as each piece arrives.

Token counts are those of the exact ids. Reasoning goes out in plain text, as the engine gives it, and a second time as
``encrypted_content`` if the caller includes that.
Source: OpenAI API reference, Responses and its streaming events, 2026.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from lightning_trainer.gateway.engine.sse import event_of
from lightning_trainer.gateway.engine.transcript import Transcript
from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.protocols import custom_tools
from lightning_trainer.gateway.protocols.responses_request import ENCRYPTED_REASONING, packed_reasoning

_ECHOED = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "user": None,
}
"""Request fields that a response repeats, with the defaults for those that were absent."""
_PART_OF = {"message": "output_text", "reasoning": "reasoning_text"}
_DELTA_OF = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
    custom_tools.CALL: "response.custom_tool_call_input",
}
_PREFIX_OF = {"message": "msg", "reasoning": "rs", "function_call": "fc", custom_tools.CALL: "ctc"}


@dataclass(slots=True)
class _Item:
    """An output item that is still being streamed."""

    index: int
    body: dict[str, Any]
    tool_index: int | None = None
    pieces: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.body["type"]


class ResponsesAnswer:
    """One response; ``asked`` is the original request."""

    def __init__(self, asked: Mapping[str, Any], model: str, transcript: Transcript) -> None:
        self._asked = asked
        self._custom = custom_tools.custom_names(asked.get("tools"))
        self._model = model
        self._transcript = transcript
        self._created = int(time.time())
        self._output: list[dict[str, Any]] = []
        self._open: _Item | None = None
        self._sequence = 0
        self._started = False

    def whole(self, raw: bytes, document: dict[str, Any]) -> bytes:
        message = document["choices"][0].get("message") or {}
        for _ in self._grow(message):
            pass
        for _ in self._close():
            pass
        return orjson.dumps(self._response(self._final_status()))

    def chunk(self, event: bytes, chunk: dict[str, Any]) -> bytes:
        if chunk.get("error"):
            return self._error(chunk["error"])
        out: list[bytes] = []
        if not self._started:
            self._started = True
            out += [
                self._event(name, response=self._response("in_progress"))
                for name in ("response.created", "response.in_progress")
            ]
        for choice in chunk.get("choices") or ():
            out += self._grow(choice.get("delta") or {})
        return b"".join(out)

    def end(self, event: bytes) -> bytes:
        if self._transcript.error is not None:
            return b""  # the error ended the stream
        out = list(self._close())
        status = self._final_status()
        return b"".join([*out, self._event(f"response.{status}", response=self._response(status))])

    def broken(self, refusal: RefusalError) -> bytes:
        return self._error(refusal.body["error"])

    def _error(self, error: Any) -> bytes:
        said = error if isinstance(error, dict) else {"message": str(error)}
        code = said.get("code")
        if not isinstance(code, str):  # the engine's codes are HTTP status numbers, and this API's are words
            code = said.get("type")
        # OpenAI's clients raise on an event with "error"; the fields next to it are those of their error event.
        return self._event("error", code=code, message=said.get("message"), param=said.get("param"), error=said)

    # -- the output, piece by piece ------------------------------------------------------------------------------

    def _grow(self, delta: Mapping[str, Any]) -> Iterator[bytes]:
        if delta.get("reasoning"):
            yield from self._add("reasoning", delta["reasoning"])
        if delta.get("content"):
            yield from self._add("message", delta["content"])
        for position, call in enumerate(delta.get("tool_calls") or ()):
            function = call.get("function") or {}
            yield from self._begin_call(call.get("index", position), call, function)
            if function.get("arguments"):
                yield from self._add_arguments(function["arguments"])

    def _begin_call(self, index: int, call: Mapping[str, Any], function: Mapping[str, Any]) -> Iterator[bytes]:
        if self._open is not None and self._open.tool_index == index:
            return
        name = function.get("name") or ""
        kind, told = (custom_tools.CALL, "input") if name in self._custom else ("function_call", "arguments")
        body = {"call_id": call.get("id") or f"call_{index}", "name": name, told: ""}
        yield from self._begin(kind, body, tool_index=index)

    def _begin(self, kind: str, body: Mapping[str, Any], tool_index: int | None = None) -> Iterator[bytes]:
        yield from self._close()
        index = len(self._output)
        item_id = f"{_PREFIX_OF[kind]}_{(self._transcript.response_id or '').removeprefix('resp_')}_{index}"
        item = {"id": item_id, "type": kind, "status": "in_progress", **body}
        self._open = _Item(index, item, tool_index)
        self._output.append(item)
        if kind != custom_tools.CALL:  # a custom call's id is known only at its end
            yield self._event("response.output_item.added", output_index=index, item=item)
        if kind in _PART_OF:
            yield self._event("response.content_part.added", **self._place(), part=_part(kind, ""))

    def _add(self, kind: str, text: str) -> Iterator[bytes]:
        if self._open is None or self._open.kind != kind:
            extra = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self._begin(kind, {**extra, "content": []})
        assert self._open is not None
        self._open.pieces.append(text)
        extra = {"logprobs": []} if kind == "message" else {}
        yield self._event(f"{_DELTA_OF[kind]}.delta", **self._place(), delta=text, **extra)

    def _add_arguments(self, text: str) -> Iterator[bytes]:
        assert self._open is not None
        if self._open.kind == "function_call":
            yield from self._add("function_call", text)
        else:
            self._open.pieces.append(text)

    def _close(self) -> Iterator[bytes]:
        item = self._open
        if item is None:
            return
        text, kind = "".join(item.pieces), item.kind
        if kind == custom_tools.CALL:
            yield from self._custom_call(item, text)
        elif kind == "function_call":
            item.body["arguments"] = text
            named = {"name": item.body["name"], "arguments": text}
            yield self._event("response.function_call_arguments.done", **self._place(), **named)
        else:
            extra = {"logprobs": []} if kind == "message" else {}
            item.body["content"] = [_part(kind, text)]
            if kind == "reasoning" and ENCRYPTED_REASONING in (self._asked.get("include") or ()):
                item.body["encrypted_content"] = packed_reasoning(text)
            yield self._event(f"{_DELTA_OF[kind]}.done", **self._place(), text=text, **extra)
            yield self._event("response.content_part.done", **self._place(), part=_part(kind, text))
        item.body["status"] = "completed"
        yield self._event("response.output_item.done", output_index=item.index, item=item.body)
        self._open = None

    def _custom_call(self, item: _Item, arguments: str) -> Iterator[bytes]:
        item.body["call_id"], text = custom_tools.input_of(item.body["call_id"], arguments)
        yield self._event("response.output_item.added", output_index=item.index, item=item.body)
        item.body["input"] = text
        if text:
            yield self._event(f"{_DELTA_OF[item.kind]}.delta", **self._place(), delta=text)
        yield self._event(f"{_DELTA_OF[item.kind]}.done", **self._place(), input=text)

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        place = {"item_id": self._open.body["id"], "output_index": self._open.index}
        return {**place, "content_index": 0} if self._open.kind in _PART_OF else place

    def _event(self, name: str, /, **fields: Any) -> bytes:
        event = event_of(orjson.dumps({"type": name, "sequence_number": self._sequence, **fields}), name)
        self._sequence += 1
        return event

    # -- the response --------------------------------------------------------------------------------------------

    def _final_status(self) -> str:
        choice = self._transcript.choices.get(0)
        return "incomplete" if choice is None or choice.finish_reason in (None, "length") else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        done = status != "in_progress"
        given, sampled = len(self._transcript.prompt_ids), self._transcript.output_tokens
        usage = {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": self._transcript.reasoning_tokens if done else 0},
            "total_tokens": given + sampled,
        }
        asked = {name: self._asked.get(name) for name in _ECHOED}
        return {
            **{name: _ECHOED[name] if value is None else value for name, value in asked.items()},
            "id": self._transcript.response_id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model,
            "output": self._output if done else [],
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": usage if done else None,
        }


def _part(kind: str, text: str) -> dict[str, Any]:
    part = {"type": _PART_OF[kind], "text": text}
    return {**part, "annotations": [], "logprobs": []} if kind == "message" else part
