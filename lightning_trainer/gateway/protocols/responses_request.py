"""OpenAI Responses requests as chat completions: the caller keeps the conversation and runs its own tools.

Nothing is stored and no tool runs here, so features that need either are refused by name. Fields that this API does not
have (``seed``, ``top_k`` ...) are passed on to the engine. An assistant turn arrives as several items (reasoning, text,
calls) and becomes one message again, as the engine sampled it, so that the next prompt extends the last one token for
token. Source: OpenAI API reference, Responses, 2026.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.protocols import custom_tools

_STATELESS = "this gateway keeps no conversations: send the whole conversation as input"
_NOT_KEPT = (
    ": this gateway keeps no answers; have the client send the items themselves (AI SDK: "
    "providerOptions.openai.store = false, or provider.chat(model))"
)
_REFUSED = {
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "background": "a response is made while you wait: leave it out",
    "prompt": "there are no stored prompts here: send instructions and input",
    "max_tool_calls": "no tool runs here: leave it out",
    "context_management": "contexts are not edited here: shorten the input yourself",
    "moderation": "nothing is moderated here: leave it out",
    "top_logprobs": "log-probabilities are recorded here and not returned; chat completions return them",
}
_UNUSED = (
    *("include", "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    *("safety_identifier", "service_tier", "store", "stream_options", "truncation"),
)
ENCRYPTED_REASONING = "reasoning.encrypted_content"
"""The value of ``include`` with which a caller asks for reasoning that it can send back."""
_OURS = "lightning."
_CALLS = ("function_call", custom_tools.CALL)
_TRANSLATED = ("input", "instructions", "max_output_tokens", "reasoning", "text", "tools")
_OWN = frozenset((*_UNUSED, *_REFUSED, *_TRANSLATED))


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a request body.

    Raises:
        RefusalError: it uses a feature that chat completions do not have; the 400 names it.
    """
    _refuse_what_is_not_here(body)
    chat = {name: value for name, value in body.items() if name not in _OWN and value is not None}
    chat["messages"] = _messages(body)
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    if body.get("tools"):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
    if isinstance(choice := body.get("tool_choice"), dict):
        chat["tool_choice"] = _tool_choice(choice)
    elif choice == "auto" and not body.get("tools"):
        del chat["tool_choice"]  # this API allows it, and some clients always send it; the engine does not
    if isinstance(reasoning := body.get("reasoning"), dict) and reasoning.get("effort"):
        chat["reasoning_effort"] = reasoning["effort"]
    if isinstance(text := body.get("text"), dict) and isinstance(text.get("format"), dict):
        chat["response_format"] = _response_format(text["format"])
    return chat


def packed_reasoning(text: str) -> str:
    """Return reasoning as ``encrypted_content``: not encrypted, since the same answer has it in plain text, but in the
    only field that some clients send back."""
    return _OURS + base64.b64encode(text.encode()).decode()


def _unpacked(given: Any) -> str | None:
    """Return the reasoning that was packed here; None if another provider encrypted it, which cannot be read."""
    if not isinstance(given, str) or not given.startswith(_OURS):
        return None
    try:
        return base64.b64decode(given.removeprefix(_OURS), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _refuse_what_is_not_here(body: Mapping[str, Any]) -> None:
    for name, why in _REFUSED.items():
        if body.get(name):
            raise RefusalError(400, f"{name} is not supported here: {why}", param=name)
    if body.get("store"):
        raise RefusalError(400, "store = true is not supported here: responses are not kept, send false", param="store")
    if body.get("truncation") not in (None, "disabled"):
        raise RefusalError(400, f"truncation = {body['truncation']!r} is not supported here", param="truncation")
    if body.get("n") not in (None, 1):
        raise RefusalError(400, f"n = {body['n']!r}: a response has one answer; make several calls", param="n")
    for wanted in body.get("include") or ():
        if wanted != ENCRYPTED_REASONING:
            raise RefusalError(400, f"include = {wanted!r} is not supported here", param="include")


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise RefusalError(400, f"input is a {type(given).__name__}; send text or a list of items", param="input")
    turn: dict[str, Any] | None = None  # the assistant's turn, while it can still grow
    for item in given:
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind in ("function_call_output", custom_tools.OUTPUT):
            turn = None
            call_id, content = custom_tools.engine_call_id(item.get("call_id")), _content(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        elif kind == "message" and item.get("role") != "assistant":
            turn = None
            role = "system" if item.get("role") == "developer" else item.get("role")
            messages.append({"role": role, "content": _content(item.get("content"))})
        elif kind in ("message", "reasoning", *_CALLS):
            if turn is None or not _continues(turn, kind):
                turn = {"role": "assistant", "content": None}
                messages.append(turn)
            _add_to_turn(turn, kind, item)
        else:
            why = _NOT_KEPT if kind == "item_reference" else ""
            raise RefusalError(400, f"an input item of type {kind!r} is not supported here{why}", param="input")
    return [message for message in messages if len(message) > 2 or message["content"] is not None]


def _continues(turn: Mapping[str, Any], kind: str) -> bool:
    if kind in _CALLS:
        return True
    return "tool_calls" not in turn and turn["content"] is None and (kind == "message" or "reasoning" not in turn)


def _add_to_turn(turn: dict[str, Any], kind: str, item: Mapping[str, Any]) -> None:
    if kind in _CALLS:
        arguments = custom_tools.arguments_of(item) if kind == custom_tools.CALL else item.get("arguments")
        function = {"name": item.get("name"), "arguments": arguments}
        call = {"id": custom_tools.engine_call_id(item.get("call_id")), "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)
    elif kind == "message":
        turn["content"] = _content(item.get("content"))
    elif texts := [part.get("text", "") for part in item.get("content") or () if isinstance(part, dict)]:
        turn["reasoning"] = "".join(texts)
    elif (text := _unpacked(item.get("encrypted_content"))) is not None:
        turn["reasoning"] = text


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": part.get("text", "")}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal", "")}
    if kind == "input_image" and part.get("image_url"):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}  # the engine knows if it reads images
    if kind in ("input_image", "input_file") and part.get("file_id"):
        raise RefusalError(400, "a file_id names a file at OpenAI, which is not here; send the data", param="input")
    raise RefusalError(400, f"a content part of type {kind!r} is not supported here", param="input")


def _tool(tool: Any) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "custom":
        return {"type": "function", "function": custom_tools.function_of(tool)}
    if kind != "function":
        raise RefusalError(
            400, f"a tool of type {kind!r} is not supported here: no tool runs here, send functions", param="tools"
        )
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    if choice.get("type") not in ("function", "custom"):
        raise RefusalError(
            400, f"tool_choice of type {choice.get('type')!r} is not supported here", param="tool_choice"
        )
    return {"type": "function", "function": {"name": choice.get("name")}}


def _response_format(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type") != "json_schema":
        return dict(given)
    return {"type": "json_schema", "json_schema": {name: value for name, value in given.items() if name != "type"}}
