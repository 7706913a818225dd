"""The Responses API: ``/v1/responses``.

With ``enable_response_messages``, vLLM returns the rendered prompt and the sampled text with their exact token ids, in
a stream on its last event. Logprobs are not requested: servers refuse the whole request if the model's format does not
support them. Source: OpenAI API reference, vLLM's ``ResponsesRequest``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning_instrumentation.spans.messages import content_parts, image_blob, parsed_arguments, tool_text
from lightning_instrumentation.wire.answer import Answer, Choice, ToolCall
from lightning_instrumentation.wire.api import Api, Json, Wanted, blank

_ENDINGS = {"response.completed", "response.incomplete", "response.failed"}
_FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_CALLS = ("function_call", "custom_tool_call")
_READ = ("message", "reasoning", None)
"""Types of items whose text has come in pieces before the item is done, and None for no item at all."""
_RESULTS = ("function_call_output", "custom_tool_call_output")
_KEPT_ELSEWHERE = ("previous_response_id", "conversation", "prompt")
"""Fields of a request that stand for messages which only the server has."""


class ResponsesAnswer(Answer):
    """An answer with one choice: the items of the output are parts of one message."""

    def __init__(self) -> None:
        super().__init__()
        self._partial = Choice()
        """The stream's content so far; the last event repeats all of it."""

    def add(self, part: Json) -> None:
        kind = part.get("type")
        if not isinstance(kind, str):
            self._add_response(part)
        elif kind in _ENDINGS:
            self._add_response(part.get("response") or {})
        elif kind == "response.created":
            self.identify(part.get("response") or {})
        elif kind == "error":
            self.error = str(part.get("message") or part)
        else:
            self._add_event(kind, part)

    def _add_event(self, kind: str, event: Json) -> None:
        choice = self.choices.setdefault(0, self._partial)
        delta = event.get("delta")
        if kind == "response.output_text.delta" and isinstance(delta, str):
            choice.content.append(delta)
        elif kind in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
            choice.reasoning.append(str(delta or ""))
        elif kind == "response.refusal.delta":
            choice.refusal.append(str(delta or ""))
        elif kind == "response.output_item.added":
            _add_tool_call(choice, event.get("output_index") or 0, event.get("item") or {})
        elif kind == "response.output_item.done":
            item = event.get("item") or {}
            if item.get("type") not in _READ:
                _add_item(choice, event.get("output_index") or 0, item)

    def _add_response(self, response: Json) -> None:
        self.identify(response)
        usage = response.get("usage")
        if usage:
            self.input_tokens = usage.get("input_tokens")
            self.output_tokens = usage.get("output_tokens")
        choice = self.choices[0] = Choice()
        for position, item in enumerate(response.get("output") or ()):
            _add_item(choice, position, item)
        choice.finish_reason = _finish_reason(response, choice)
        self.prompt_ids = _only_tokens(response.get("input_messages"))
        choice.token_ids = _only_tokens(response.get("output_messages")) or []


def _add_item(choice: Choice, position: int, item: Json) -> None:
    if item.get("type") == "message":
        for part in item.get("content") or ():
            if part.get("type") == "output_text":
                choice.content.append(part.get("text") or "")
            elif part.get("type") == "refusal":
                choice.refusal.append(part.get("refusal") or "")
    elif item.get("type") == "reasoning":
        for part in item.get("content") or item.get("summary") or ():
            choice.reasoning.append(part.get("text") or "")
    elif item.get("type") in _CALLS:
        _add_tool_call(choice, position, item)
    else:  # a tool of OpenAI's, or one that the program runs in a way of its own
        choice.others.append(_picture(item) or item)


def _picture(item: Json) -> dict[str, Any] | None:
    drawn = item.get("result") if item.get("type") == "image_generation_call" else None
    return image_blob(drawn) if isinstance(drawn, str) else None


def _add_tool_call(choice: Choice, position: int, item: Json) -> None:
    if item.get("type") in _CALLS:
        arguments = item.get("arguments") or item.get("input") or ""
        choice.tool_calls[position] = ToolCall(item.get("call_id"), item.get("name") or "", arguments)


def _finish_reason(response: Json, choice: Choice) -> str | None:
    """Return the finish reason in the terms of chat completions; this API has none."""
    status = response.get("status")
    if status == "completed":
        return "tool_calls" if choice.tool_calls else "stop"
    if status == "incomplete":
        details: Json = response.get("incomplete_details") or {}
        return _FINISH_REASONS.get(str(details.get("reason")), "length")
    return "error" if status == "failed" else None


def _only_tokens(messages: Any) -> list[int] | None:
    """Return the ids of the single raw message; several (a turn with a server's own tools) are not one prompt and
    sample."""
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict):
        tokens = messages[0].get("tokens")
        return tokens if isinstance(tokens, list) else None
    return None


class Responses(Api):
    """The format of the Responses API."""

    name = "responses"

    def fits(self, body: Json) -> bool:
        return "input" in body and isinstance(body.get("model"), str)

    def wanted(self, body: Json) -> Wanted:
        return Wanted(token_ids="enable_response_messages" not in body)

    def additions(self, wanted: Wanted) -> dict[str, Any]:
        return {"enable_response_messages": True} if wanted.token_ids else {}

    def input_messages(self, body: Json) -> list[Any]:
        said: list[Any] = []
        if isinstance(body.get("instructions"), str):
            said.append({"role": "system", "parts": [{"type": "text", "content": body["instructions"]}]})
        # Without these messages, what follows is not a prompt that a model ever saw, and no reader may take it for one.
        said.extend({"type": name, name: body[name]} for name in _KEPT_ELSEWHERE if body.get(name))
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        said.extend(_input_item(item) for item in (items if isinstance(items, Iterable) else ()))
        return said

    def answer(self) -> Answer:
        return ResponsesAnswer()

    def hide(self, part: dict[str, Any], asked: Wanted) -> bool:
        whole = part.get("response") if isinstance(part.get("type"), str) else part
        if not isinstance(whole, dict):
            return False
        return blank(whole, "input_messages") | blank(whole, "output_messages")


def _input_item(item: Any) -> Any:
    if hasattr(item, "model_dump"):
        item = item.model_dump(mode="json", exclude_unset=True)
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    if kind in _CALLS:
        call = {
            "type": "tool_call",
            "id": item.get("call_id"),
            "name": item.get("name"),
            "arguments": parsed_arguments(item.get("arguments") or item.get("input")),
        }
        return {"role": "assistant", "parts": [call]}
    if kind in _RESULTS:
        answered = {"type": "tool_call_response", "id": item.get("call_id"), "response": tool_text(item.get("output"))}
        return {"role": "tool", "parts": [answered]}
    if kind == "reasoning":
        texts = [part.get("text") or "" for part in item.get("content") or item.get("summary") or ()]
        return {"role": "assistant", "parts": [{"type": "reasoning", "content": "".join(texts)}]}
    if "role" in item:
        return {"role": item["role"], "parts": content_parts(item.get("content"))}
    return item
