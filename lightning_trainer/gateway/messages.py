"""OpenAI messages as OpenTelemetry's GenAI messages: ``role`` and ``parts``, as JSON text.

Source: OpenTelemetry GenAI semantic conventions, ``gen_ai.input.messages`` and ``gen_ai.output.messages``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from lightning_trainer.gateway.transcript import ChoiceTranscript


def input_messages(messages: Any) -> str:
    """Return the request's messages; what has an unknown shape is kept as it is."""
    listed = messages if isinstance(messages, list) else []
    return _text([_input_message(message) if isinstance(message, dict) else message for message in listed])


def output_messages(choices: Iterable[ChoiceTranscript]) -> str:
    """Return the response's messages, one a choice."""
    return _text([_output_message(choice) for choice in choices])


def tool_definitions(tools: Any) -> str:
    return _text(tools)


def _input_message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    parts = _content_parts(message.get("content"))
    if role == "tool":
        content = message.get("content")
        parts = [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {} if isinstance(call, dict) else {}
        parts.append(_tool_call(call.get("id") if isinstance(call, dict) else None, function))
    return {"role": role, "parts": parts}


def _content_parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}] if content else []
    parts = []
    for part in content if isinstance(content, list) else ():
        is_text = isinstance(part, dict) and part.get("type") == "text"
        parts.append({"type": "text", "content": part.get("text")} if is_text else part)
    return parts


def _output_message(choice: ChoiceTranscript) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if choice.reasoning:
        parts.append({"type": "reasoning", "content": "".join(choice.reasoning)})
    if choice.content:
        parts.append({"type": "text", "content": "".join(choice.content)})
    parts.extend(_tool_call(call["id"], call) for _, call in sorted(choice.tool_calls.items()))
    return {"role": "assistant", "parts": parts, "finish_reason": choice.finish_reason}


def _tool_call(call_id: str | None, function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "tool_call",
        "id": call_id,
        "name": function.get("name"),
        "arguments": function.get("arguments"),
    }


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()
