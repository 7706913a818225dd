"""Anthropic Messages requests as chat completions, and errors in the shape that Anthropic's clients expect.

Features that need Anthropic's own servers (their tools, files, containers) are refused by name. Fields that this API
does not have are passed on to the engine. Source: Anthropic API reference, Messages and context editing, version
2023-06-01.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.protocols.anthropic_tools import function_tool
from lightning_trainer.gateway.protocols.chat_request import without_late_system

_REFUSED = {
    "container": "nothing runs here: leave it out",
    "mcp_servers": "no tool runs here: send tools of your own",
    "thread": "this gateway keeps no conversations: send all messages",
    "compaction": "no conversation is summarized here: shorten it yourself",
}
_UNUSED = ("metadata", "service_tier", "inference_geo", "cache_control")
_TRANSLATED = (
    *("system", "messages", "max_tokens", "stop_sequences"),
    *("tools", "tool_choice", "thinking", "output_config", "output_format", "context_management"),
)
_OWN = frozenset((*_UNUSED, *_REFUSED, *_TRANSLATED))
_NOT_FOR_THE_MODEL = "x-anthropic-billing-header"
"""The first words of the system block that Claude Code sends for Anthropic's servers, not for the model."""
_SAYS_IT_FAILED = ("error", "<tool_use_error>")
"""How results begin that already tell the model that the tool failed; the second is Claude Code's."""
_EDITED_FROM_TOKENS = {"clear_tool_uses_20250919": 100_000, "compact_20260112": 150_000}
"""Context edits triggered by a number of prompt tokens, with Anthropic's default number."""
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
        RefusalError: it uses a feature that chat completions do not have; the 400 names it.
    """
    for name, why in _REFUSED.items():
        if body.get(name):
            raise RefusalError(400, f"{name} is not supported here: {why}", param=name)
    if not isinstance(body.get("max_tokens"), int):
        raise RefusalError(400, f"max_tokens is {body.get('max_tokens')!r}; a number is required", param="max_tokens")
    if body.get("n") not in (None, 1):
        raise RefusalError(400, f"n = {body['n']!r}: a message is one answer; make several calls", param="n")
    chat = {name: value for name, value in body.items() if name not in _OWN and value is not None}
    chat["max_completion_tokens"] = body["max_tokens"]
    chat["messages"] = _messages(body)
    if _is_begun(chat["messages"][-1:]):
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    if body.get("tools"):
        chat["tools"] = [function_tool(tool) for tool in body["tools"]]
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if isinstance(choice := body.get("tool_choice"), dict):
        chat |= _tool_choice(choice)
    # `output_format` is the earlier name of the format in `output_config`.
    chat |= _output({"format": body.get("output_format"), **(body.get("output_config") or {})})
    if isinstance(thinking := body.get("thinking"), dict) and thinking.get("type") == "disabled":
        # This replaces the effort. `budget_tokens` is left out: for Anthropic it is a target, and a thought that the
        # engine cuts off is not what the policy sampled.
        chat["reasoning_effort"] = "none"
    return chat


def edited_from(body: Mapping[str, Any]) -> int | None:
    """Return the number of prompt tokens from which on the caller wants the context edited; None if never.

    Raises:
        RefusalError: the body asks for an edit that would change this context, or for one unknown here (400).
    """
    asked = body.get("context_management") or {}
    edits, messages = asked.get("edits") or (), body.get("messages")
    turns = messages if isinstance(messages, list) else ()
    from_tokens: list[int] = []
    for edit in edits:
        kind = edit.get("type")
        trigger = edit.get("trigger") or {}
        if kind == "clear_thinking_20251015":
            _check_thinking(edit.get("keep", {"type": "thinking_turns", "value": 1}), turns)
        elif kind == "clear_tool_uses_20250919" and trigger.get("type") == "tool_uses":
            if (used := sum(_kind(block) == "tool_use" for block in _blocks(turns))) > trigger["value"]:
                raise _edit_refused(kind, f"{used} tool uses are more than its trigger of {trigger['value']}")
        elif kind in _EDITED_FROM_TOKENS:
            from_tokens.append(int(trigger.get("value", _EDITED_FROM_TOKENS[kind])))
        else:
            raise RefusalError(
                400, f"context_management: the edit {kind!r} is not known here", param="context_management"
            )
    return min(from_tokens, default=None)


def too_long_unedited(tokens: int, limit: int) -> RefusalError:
    """Return a 400: the context would be edited from ``limit`` tokens on."""
    return _edit_refused("an edit", f"{tokens} prompt tokens reach its trigger of {limit}")


def accommodated(body: Mapping[str, Any], error: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the chat body to retry with after the engine refused one; None if its refusal stands.

    ``max_tokens`` is a required upper bound in this API, so clients send their provider's maximum. If the context has
    room for fewer tokens, the remaining room becomes the bound. See also ``without_late_system``.
    """
    for bound in ("max_completion_tokens", "max_tokens"):  # the latter comes from a rollout's URL
        if error.get("param") in (bound, "input_tokens", "input_text") and (body.get(bound) or 0) > 0:
            return {name: value for name, value in body.items() if name != bound}
    return without_late_system(body, error)


def error_body(status: int, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an error in OpenAI's shape as one in Anthropic's."""
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(message or "the engine gave no reason")}}


def _check_thinking(keep: Any, messages: Any) -> None:
    kept = keep.get("type") if isinstance(keep, dict) else keep
    if kept == "all":
        return
    # A turn ends at the next user message; tool results belong to the turn.
    turns, thought = 0, []
    before = "user"
    for message in messages:
        spoke = message["role"] == "assistant"
        results = not spoke and any(_kind(block) == "tool_result" for block in _blocks([message]))
        if spoke and before == "user":
            turns += 1
            thought.append(False)
        if spoke and any(_kind(block) == "thinking" for block in _blocks([message])):
            thought[-1] = True
        before = "assistant" if spoke or results else "user"
    if any(thought[: max(0, turns - int(keep["value"]))]):
        raise _edit_refused("clear_thinking_20251015", f"it would remove the thinking of all but {keep['value']} turns")


def _is_begun(last: list[dict[str, Any]]) -> bool:
    """Whether the last message is the beginning of an answer, which the model continues."""
    return any(message["role"] == "assistant" and message["content"] and len(message) == 2 for message in last)


def _blocks(messages: Any) -> Iterator[Any]:
    for message in messages:
        if isinstance(message.get("content"), list):
            yield from message["content"]


def _edit_refused(kind: str, why: str) -> RefusalError:
    return RefusalError(
        400,
        f"context_management: {kind} would change the context, which is not done here ({why}): shorten it yourself",
        param="context_management",
    )


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    system = body.get("system")
    if isinstance(system, list):
        system = [block for block in system if not str(block.get("text", "")).startswith(_NOT_FOR_THE_MODEL)]
    if system:
        messages.append({"role": "system", "content": _content(system)})
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
            result = (_content(content) if isinstance(content, list) and content else content) or ""
            if block.get("is_error") is True:
                result = _failed(result)
            messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result})
        else:
            said.append(block)
    return [*messages, {"role": role, "content": _content(said)}] if said else messages


def _failed(result: Any) -> Any:
    """Return a tool's result that says in words that the tool failed: chat completions have no field for that."""
    if isinstance(result, list):
        first, rest = (result[0]["text"], result[1:]) if result[0]["type"] == "text" else ("", result)
        return [{"type": "text", "text": _failed(first)}, *rest]
    if result.lstrip().lower().startswith(_SAYS_IT_FAILED):
        return result
    return f"Error: {result}" if result else "Error"


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
        return {"type": "image_url", "image_url": {"url": url}}  # the engine knows whether its model reads images
    raise RefusalError(400, f"a content block of type {kind!r} is not supported here", param="messages")


def _kind(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else type(block).__name__


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


def _output(wanted: Mapping[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {"reasoning_effort": wanted["effort"]} if wanted.get("effort") else {}
    form = wanted.get("format")
    if form is not None:
        if form.get("type") != "json_schema":
            raise RefusalError(
                400, f"an output format of type {form.get('type')!r} is not supported here", param="output_config"
            )
        schema = {"name": "output", "schema": form.get("schema")}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    return asked
