"""Converts messages in the form of the GenAI conventions to the chat messages that templates, servers and TRL take.

A message that cannot be put into words (an image, a part of an unknown kind) is refused, never left out: the remaining
ids would be those of another prompt. A tool's result that is data is written as the JSON that clients send for it.
Source: OpenAI chat messages, as the ``apply_chat_template`` of transformers reads them, and
``entrypoints/chat_utils.py`` of vLLM, which hands them to it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from lightning_trainer.errors import LightningError
from lightning_trainer.ingest.dialects.dialect import Message

ChatMessage = dict[str, Any]


class NoWordsError(LightningError, ValueError):
    """A message has parts that are not words, or lacks a role or a tool's name."""


def chat_messages(messages: Iterable[Message]) -> list[ChatMessage]:
    """Return messages as chat messages.

    A message that answers several tool calls becomes one message for each, and what a user says with them another.

    Raises:
        NoWordsError: one of them cannot be put into words.
    """
    return [chat for message in messages for chat in _messages(message)]


def chat_answer(message: Message) -> ChatMessage:
    """Return the model's answer as a chat message.

    Raises:
        NoWordsError: it cannot be put into words, or is not one message.
    """
    found = _messages({"role": "assistant", **message})
    if len(found) != 1 or found[0]["role"] != "assistant":
        raise NoWordsError(f"the answer is a message of the role {message.get('role')!r}, not of the assistant")
    return found[0]


def chat_tools(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tool definitions in the form that requests use, without those that have no name.

    Tools without a name run at a provider, and no other model can call them.
    """
    return [
        {"type": "function", "function": {key: tool.get(key) for key in ("name", "description", "parameters")}}
        for tool in tools
        if isinstance(tool.get("name"), str)
    ]


def as_served(message: ChatMessage) -> ChatMessage:
    """Return a message as the engine hands it to the chat template.

    The arguments of tool calls become objects, and a developer's message the system's. Arguments that are not an object
    count as empty, and so does content that is null or missing.

    Raises:
        NoWordsError: it is not a message, or one of its tool calls names no tool.
    """
    if not isinstance(message, Mapping):
        raise NoWordsError(f"a message is {message!r}, not an object with a role and its content")
    served = {name: value for name, value in message.items() if name != "tool_calls"}
    if served.get("role") == "developer":  # as the gateway does: templates know no such role, and may leave it out
        served["role"] = "system"
    if served.get("content") is None:
        served["content"] = ""
    if calls := tool_calls(message):
        for function in (call["function"] for call in calls):
            function["arguments"] = function["arguments"] if isinstance(function["arguments"], dict) else {}
        served["tool_calls"] = calls
    return served


def tool_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a chat message's tool calls in OpenAI's form, except that arguments that are an object are given as one.

    Requests have arguments as JSON text; datasets of Hugging Face also have calls without ``function`` around them.

    Raises:
        NoWordsError: one of them names no tool.
    """
    found = []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise NoWordsError(f"a tool call is {call!r}, without a tool's name")
        around = {name: value for name, value in call.items() if name not in ("name", "arguments")}
        called = {"name": function["name"], "arguments": _arguments(function.get("arguments"))}
        found.append({"type": "function", **around, "function": called})
    return found


def _arguments(given: Any) -> Any:
    if not isinstance(given, str):
        return {} if given is None else given
    try:
        return json.loads(given or "{}")
    except ValueError:
        return given


def _messages(message: Message) -> list[ChatMessage]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        kind = _kind(message)
        raise NoWordsError(
            "a message has no role" if kind is None else f"an item of the type {kind!r} is not a message"
        )
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    answers: list[ChatMessage] = []
    for part in message.get("parts") or ():
        kind = _kind(part)
        if kind in ("text", "reasoning") and isinstance(part.get("content"), str):
            (texts if kind == "text" else reasoning).append(part["content"])
        elif kind == "tool_call":
            calls.append(_tool_call(part))
        elif kind == "tool_call_response" and (result := _tool_result(part)) is not None:
            answers.append({"role": "tool", "tool_call_id": part.get("id"), "content": result})
        else:
            raise NoWordsError(f"a message of the role {role!r} has a part of the kind {kind!r}, which is not text")
    if answers and not (texts or reasoning or calls):
        return answers
    if answers and role != "user":  # nothing says which part came first
        raise NoWordsError(f"a message of the role {role!r} has more than the results of tools")
    chat: ChatMessage = {"role": role, "content": "\n".join(texts)}
    if message.get("name"):
        chat["name"] = message["name"]
    if reasoning:
        chat["reasoning_content"] = "\n".join(reasoning)
    if calls:
        chat["tool_calls"] = calls
    return [*answers, chat]


def _tool_result(part: Mapping[str, Any]) -> str | None:
    """Return what a tool gave as text; None if there is nothing, or more than text and data."""
    if "response" not in part:
        return None
    result = part["response"]
    if isinstance(result, str):
        return result
    if isinstance(result, list) and any(map(_kind, result)):  # parts of a message, not data
        texts = [one.get("text", one.get("content")) if _kind(one) == "text" else None for one in result]
        said = [text for text in texts if isinstance(text, str)]
        return "\n".join(said) if len(said) == len(texts) else None
    return json.dumps(result, ensure_ascii=False, separators=(",", ":"))


def _kind(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else None


def _tool_call(part: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(part.get("name"), str) or not part["name"]:
        raise NoWordsError("a message has a tool call without a tool's name")
    function = {"name": part["name"], "arguments": part.get("arguments")}
    call_id = part.get("id")
    return {**({"id": call_id} if call_id else {}), "type": "function", "function": function}
