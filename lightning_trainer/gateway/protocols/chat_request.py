"""Chat completions requests: refuses, by name, what the engine would silently leave out.

The engine takes any field and ignores those that it does not know. Most of them are hints (``prediction``,
``verbosity``) or about the caller's account (``store``, ``metadata``), and an answer without them is still the answer
that was asked for. The fields refused here change what the model sees, or what is in its answer.
Source: OpenAI API reference, chat completions, 2026; vLLM's ``ChatCompletionRequest``.
"""

from collections.abc import Mapping
from typing import Any

from lightning_trainer.gateway.errors import RefusalError

_REFUSED = {
    "functions": "they were replaced by tools, which the model gets: send tools and tool_choice",
    "web_search_options": "nothing is searched here: send a tool of your own",
    "audio": "answers are text alone: leave it out",
    "moderation": "nothing is moderated here: leave it out",
}
_NOT_SEEN = {
    "function_call": "send tool_calls, and the result as a message of the role tool",
    "audio": "send its transcript as content",
}
"""Fields of a message that no model here would see."""


def refuse_unseen_fields(body: Mapping[str, Any]) -> None:
    """Check a request body.

    Raises:
        RefusalError: it asks for something that the engine would silently leave out; the 400 names it.
    """
    for name, instead in _REFUSED.items():
        if body.get(name):
            raise RefusalError(400, f"{name} is not supported here: {instead}", param=name)
    modalities = body.get("modalities")
    for kind in modalities if isinstance(modalities, list) else ():
        if kind != "text":
            raise RefusalError(400, f"modalities has {kind!r}: answers are text alone", param="modalities")
    _check_tools(body)
    messages = body.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else (), start=1):
        for name, instead in _NOT_SEEN.items():
            if isinstance(message, Mapping) and message.get(name):
                raise RefusalError(400, f"message {number} has {name}, which no model here sees: {instead}", param=name)


def with_system(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with developer messages as system messages: some templates leave developer messages out."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(map(_is_developers, messages)):
        return body
    said = [{**message, "role": "system"} if _is_developers(message) else message for message in messages]
    return {**body, "messages": said}


def _is_developers(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "developer"


def without_late_system(body: Mapping[str, Any], error: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the body to retry with after the engine refused one; None if its refusal stands.

    Some templates allow a system message only at the beginning: a later one is then sent as a user message.
    """
    messages = body["messages"]
    late = [m for m in messages[1:] if m["role"] == "system"]
    if late and "system" in str(error.get("message", "")).lower():
        said = [{**m, "role": "user"} if m["role"] == "system" else m for m in messages[1:]]
        return {**body, "messages": [messages[0], *said]}
    return None


def _check_tools(body: Mapping[str, Any]) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if kind == "custom":
            raise RefusalError(
                400,
                "a tool of type 'custom' is served in Responses alone: call responses.create, or send a function",
                param="tools",
            )
        if kind not in (None, "function"):
            raise RefusalError(400, f"a tool of type {kind!r} is not supported here: send functions", param="tools")
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "allowed_tools":
        raise RefusalError(
            400,
            "tool_choice of type 'allowed_tools' is not supported here: send only the tools that may be called",
            param="tool_choice",
        )
