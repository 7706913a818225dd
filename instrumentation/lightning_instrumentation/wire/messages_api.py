"""Anthropic's Messages API: ``/v1/messages``, whole and as server-sent events.

No server returns token ids in this format, so none are requested. Source: Anthropic API reference, Messages.
"""

from __future__ import annotations

from typing import Any

from lightning_instrumentation.spans.messages import as_json, content_parts, tool_text
from lightning_instrumentation.wire.answer import Answer, Choice, ToolCall
from lightning_instrumentation.wire.api import Api, Json

_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")


class MessagesAnswer(Answer):
    """A message of Anthropic's API, whole or streamed."""

    def add(self, part: Json) -> None:
        kind = part.get("type")
        if kind == "message_start":
            self._add_message(part.get("message") or {})
        elif kind == "content_block_start":
            _add_block(self.choice(0), part.get("index") or 0, part.get("content_block") or {})
        elif kind == "content_block_delta":
            _add_delta(self.choice(0), part.get("index") or 0, part.get("delta") or {})
        elif kind == "message_delta":
            self._stop((part.get("delta") or {}).get("stop_reason"))
            self._add_usage(part.get("usage") or {})
        elif kind in ("message", "error") or "content" in part:
            self._add_message(part)

    def _add_message(self, message: Json) -> None:
        self.identify(message)
        if self.error is not None:
            return
        choice = self.choice(0)
        for position, block in enumerate(message.get("content") or ()):
            _add_block(choice, position, block, no_input="{}")
        self._stop(message.get("stop_reason") or choice.finish_reason)
        self._add_usage(message.get("usage") or {})

    def _stop(self, reason: Any) -> None:
        choice = self.choice(0)
        choice.finish_reason = reason
        if reason == "pause_turn":  # a tool of Anthropic's continues in the next call: this answer is incomplete
            choice.others.append({"type": reason})

    def _add_usage(self, usage: Json) -> None:
        # Tokens read from and written to the cache are part of the prompt but counted separately on the wire.
        read = [usage.get(f"{kind}input_tokens") for kind in ("", "cache_read_", "cache_creation_")]
        if read[0] is not None:
            self.input_tokens = sum(count or 0 for count in read)
        if usage.get("output_tokens") is not None:
            self.output_tokens = usage["output_tokens"]


def _add_block(choice: Choice, index: int, block: Json, *, no_input: str = "") -> None:
    """Add a block. ``no_input``: the arguments for an empty input, which in a stream means that their text follows."""
    kind = block.get("type")
    if kind == "text":
        choice.content.append(block.get("text") or "")
    elif kind == "thinking":
        choice.reasoning.append(block.get("thinking") or "")
    elif kind in _CALLS:
        given = block.get("input")
        arguments = as_json(given) if given else no_input
        choice.tool_calls[index] = ToolCall(block.get("id"), block.get("name") or "", arguments)
    elif kind == "redacted_thinking" or (kind == "compaction" and not block.get("content")):
        pass  # nothing readable, or not yet
    else:  # what a tool of Anthropic's did
        choice.others.append(block)


def _add_delta(choice: Choice, index: int, delta: Json) -> None:
    kind = delta.get("type")
    if kind == "text_delta":
        choice.content.append(delta.get("text") or "")
    elif kind == "thinking_delta":
        choice.reasoning.append(delta.get("thinking") or "")
    elif kind == "input_json_delta":
        choice.tool_calls.setdefault(index, ToolCall()).arguments += delta.get("partial_json") or ""
    elif kind == "compaction_delta":
        choice.others.append({"type": "compaction", "content": delta.get("content")})


class Messages(Api):
    """The format of Anthropic's messages."""

    name = "messages"
    provider = "anthropic"

    def fits(self, body: Json) -> bool:
        return (
            isinstance(body.get("messages"), list | tuple)
            and isinstance(body.get("model"), str)
            and "max_tokens" in body
        )

    def input_messages(self, body: Json) -> list[Any]:
        said: list[Any] = []
        if body.get("system"):
            said.append({"role": "system", "parts": content_parts(body["system"])})
        thread = body.get("thread")
        if isinstance(thread, dict) and thread.get("type") != "create":
            # Only Anthropic has the earlier messages: no reader may take those that follow for the whole prompt.
            said.append({"type": "thread", "thread": thread})
        for message in body["messages"]:
            said.extend(_split(message) if isinstance(message, dict) else [message])
        return said

    def answer(self) -> Answer:
        return MessagesAnswer()


def _split(message: Json) -> list[dict[str, Any]]:
    """Split a message: its tool results become messages of the tool, as in every other format."""
    content = message.get("content")
    if not isinstance(content, list):
        return [{"role": message.get("role"), "parts": content_parts(content)}]
    results = [block for block in content if isinstance(block, dict) and block.get("type") == "tool_result"]
    rest = [block for block in content if block not in results]
    said: list[dict[str, Any]] = [
        {
            "role": "tool",
            "parts": [
                {
                    "type": "tool_call_response",
                    "id": block.get("tool_use_id"),
                    "response": tool_text(block.get("content")),
                }
            ],
        }
        for block in results
    ]
    if rest or not results:
        said.append({"role": message.get("role"), "parts": [_part(block) for block in rest]})
    return said


def _part(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "tool_use":
        return {
            "type": "tool_call",
            "id": block.get("id"),
            "name": block.get("name"),
            "arguments": block.get("input"),
        }
    return content_parts([block])[0]
