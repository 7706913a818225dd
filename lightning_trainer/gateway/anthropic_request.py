"""Anthropic Messages requests as chat completions, and errors as an Anthropic client expects them.

What needs Anthropic's own servers (their tools, files, containers) is refused by name. Fields that this API does not
have are passed on to the engine.
Source: Anthropic API reference, Messages, version 2023-06-01.
"""

import json
from collections.abc import Mapping
from typing import Any

from lightning_trainer.gateway.errors import RefusalError

_REFUSED = ("container", "mcp_servers", "context_management")
_UNUSED = ("metadata", "service_tier", "inference_geo", "cache_control")
_TRANSLATED = (
    *("system", "messages", "max_tokens", "stop_sequences"),
    *("tools", "tool_choice", "thinking", "output_config"),
)
_OWN = frozenset((*_UNUSED, *_REFUSED, *_TRANSLATED))
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a request body.

    Raises:
        RefusalError: it asks for something that chat completions do not have; 400 names it.
    """
    for name in _REFUSED:
        if body.get(name):
            raise RefusalError(400, f"{name} is not supported here", param=name)
    if not isinstance(body.get("max_tokens"), int):
        raise RefusalError(400, f"max_tokens is {body.get('max_tokens')!r}; a number is required", param="max_tokens")
    if body.get("n") not in (None, 1):
        raise RefusalError(400, f"n = {body['n']!r}: a message is one answer; make several calls", param="n")
    chat = {name: value for name, value in body.items() if name not in _OWN and value is not None}
    chat["messages"] = _messages(body)
    chat["max_completion_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if body.get("tools"):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
    if isinstance(choice := body.get("tool_choice"), dict):
        chat |= _tool_choice(choice)
    if isinstance(thinking := body.get("thinking"), dict):
        chat |= _thinking(thinking)
    if isinstance(wanted := body.get("output_config"), dict):
        chat |= _output(wanted)
    return chat


def error_body(status: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an error of OpenAI's shape in Anthropic's."""
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(message or "the engine gave no reason")}}


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _content(body["system"])})
    given = body.get("messages")
    if not isinstance(given, list):
        raise RefusalError(400, f"messages is a {type(given).__name__}; send a list", param="messages")
    for message in given:
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise RefusalError(400, f"a message has the role {role!r}; send user or assistant", param="messages")
        content = message.get("content")
        if isinstance(content, list):
            messages.extend(_assistant_turn(content) if role == "assistant" else _user_turn(role, content))
        else:
            messages.append({"role": role, "content": content})
    return messages


def _assistant_turn(blocks: list[Any]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    texts = []
    for block in blocks:
        match _kind(block):
            case "tool_use":
                function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
                call = {"id": block.get("id"), "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
            case "thinking":
                message["reasoning"] = message.get("reasoning", "") + block.get("thinking", "")
            case "redacted_thinking":
                pass  # nothing that a model could read
            case _:
                texts.append(block)
    if texts:
        message["content"] = _content(texts)
    return [message] if len(message) > 2 or texts else []


def _user_turn(role: str, blocks: list[Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    said: list[Any] = []
    for block in blocks:
        if _kind(block) == "tool_result":
            content = block.get("content")
            result = _content(content) if isinstance(content, list) and content else content
            messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result or ""})
        else:
            said.append(block)
    return [*messages, {"role": role, "content": _content(said)}] if said else messages


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    parts = [_part(block) for block in content]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(block: Any) -> dict[str, Any]:
    kind = _kind(block)
    if kind == "text":
        return {"type": "text", "text": block.get("text", "")}
    source = block.get("source") if kind == "image" else None
    if isinstance(source, dict) and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": source.get("url")}}
    if isinstance(source, dict) and source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}  # the engine knows whether its model sees
    raise RefusalError(400, f"a content block of type {kind!r} is not supported here", param="messages")


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else type(block).__name__


def _tool(tool: Any) -> dict[str, Any]:
    kind = tool.get("type") or "custom" if isinstance(tool, dict) else None
    if kind != "custom":
        raise RefusalError(
            400, f"a tool of type {kind!r} is not supported here: it runs at Anthropic, send your own", param="tools"
        )
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    if kind == "tool":
        chosen: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in _CHOICES:
        chosen = _CHOICES[kind]
    else:
        raise RefusalError(400, f"tool_choice of type {kind!r} is not supported here", param="tool_choice")
    alone = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": chosen, **alone}


def _thinking(thinking: Mapping[str, Any]) -> dict[str, Any]:
    if thinking.get("type") == "disabled":
        return {"reasoning_effort": "none"}
    return {"thinking_token_budget": thinking["budget_tokens"]} if thinking.get("budget_tokens") else {}


def _output(wanted: Mapping[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {"reasoning_effort": wanted["effort"]} if wanted.get("effort") else {}
    form = wanted.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {"name": "output", "schema": form.get("schema")}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    return asked
