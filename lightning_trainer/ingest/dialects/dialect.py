"""The common vocabulary of all dialects for a model call, regardless of what recorded it.

A :class:`ModelCall` is cheap to read and is read from every span. A :class:`Conversation` holds the messages, which are
costly to read (JSON inside attributes), and is requested only if the text matters. Messages are in the GenAI
conventions' form: a role and a list of parts (``text``, ``reasoning``, ``tool_call``, ``tool_call_response`` ...).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from lightning_trainer.ingest.dialects.values import arguments, objects, tool_call_part
from lightning_trainer.types import AttributeValue, Span

Message = Mapping[str, Any]
"""``{"role": ..., "parts": [...]}``, on an answer also ``"finish_reason"``."""


class ModelCall(NamedTuple):
    """One answered request to a model, according to one span."""

    span: Span
    dialect: str
    response_id: str | None
    finish_reasons: tuple[str | None, ...]
    """One per choice; None if the span does not say."""
    complete: bool | None
    """False if the span shows that the answer was cut off; None if it does not say."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The server's model name and token counts; each is None if the span does not say."""

    model: str | None
    """The model that answered, else the requested one."""
    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a call; empty if the span has no content (capturing content is optional everywhere)."""

    input_messages: tuple[Message, ...] = ()
    output_messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """Definitions of the available tools, each with a ``name``."""

    def __post_init__(self) -> None:
        """Enforce types, since a foreign tracer may write anything: a role is text, and parts are objects whose type
        and name are text. A part that a tracer writes in a form of its own gets the conventions' form."""
        for field in ("input_messages", "output_messages"):
            messages = getattr(self, field)
            if not all(map(_is_message, messages)):
                object.__setattr__(self, field, tuple(map(_as_message, messages)))

    @property
    def tools_called(self) -> tuple[str, ...]:
        """Return the names of the tools that the answer calls, in order."""
        return tuple(
            part["name"]
            for message in self.output_messages
            for part in message.get("parts") or ()
            if isinstance(part, Mapping) and part.get("type") == "tool_call" and isinstance(part.get("name"), str)
        )


_TEXT_OR_NONE = (str, type(None))
_BESIDE_PARTS = frozenset({"tool_calls", "tool_call_id"})
"""Fields of chat completions' messages that LiteLLM writes next to the parts."""
_CACHE_MARK = "cachePoint"
"""Marks how far Bedrock shall cache the prompt, and says nothing to the model. Strands writes it among the parts."""


def _is_message(message: Message) -> bool:
    parts = message.get("parts")
    return (
        isinstance(message.get("role"), _TEXT_OR_NONE)
        and isinstance(parts, list)
        and _BESIDE_PARTS.isdisjoint(message)
        and all(_is_part(part) and not _is_other_form(part) for part in parts)
    )


def _is_part(part: Any) -> bool:
    return isinstance(part, Mapping) and all(isinstance(part.get(name), _TEXT_OR_NONE) for name in ("type", "name"))


def _is_said(part: Any) -> bool:
    return _is_part(part) and part.get("type") != _CACHE_MARK


def _is_other_form(part: Mapping[str, Any]) -> bool:
    match part.get("type"):
        case "tool_call":  # Traceloop's is an object inside the part
            return isinstance(part.get("tool_call"), Mapping)
        case "tool_call_response":  # Pydantic AI's
            return "result" in part and "response" not in part
        case kind:
            return kind in ("thinking", _CACHE_MARK)  # Pydantic AI's


def _as_part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part in the form of the conventions."""
    if not _is_other_form(part):
        return part
    match part["type"]:
        case "tool_call":
            call = part["tool_call"]
            name = call.get("name")
            return {
                "type": "tool_call",
                "id": call.get("id", part.get("id")),
                "name": name if isinstance(name, str) else None,
                "arguments": arguments(call.get("arguments")),
            }
        case "tool_call_response":
            return {("response" if name == "result" else name): value for name, value in part.items()}
    return {**part, "type": "reasoning"}


def _as_message(message: Message) -> Message:
    """Drop fields that have the wrong type, and cache marks; turn what LiteLLM writes next to the parts into parts."""
    role, given = message.get("role"), message.get("parts")
    parts: list[Mapping[str, Any]] = []
    if isinstance(given, list):
        parts += [_as_part(part) for part in given if _is_said(part)]
    kept = {name: value for name, value in message.items() if name not in _BESIDE_PARTS}
    if role == "tool" and "tool_call_id" in message:
        texts = [one.get("content") for one in parts if one.get("type") == "text"]
        result = texts[0] if len(parts) == len(texts) == 1 else parts
        parts = [{"type": "tool_call_response", "id": message["tool_call_id"], "response": result}]
    parts += map(_called, objects(message.get("tool_calls")))
    return {**kept, "role": role if isinstance(role, str) else None, "parts": parts}


def _called(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    said = function if isinstance(function, Mapping) else {}
    name = said.get("name")
    return tool_call_part(call.get("id"), name if isinstance(name, str) else None, said.get("arguments"))


@dataclass(frozen=True, slots=True)
class Naming:
    """An agent's name on a span, and how it was recognized."""

    agent: str
    source: str | None
    """None: the span repeats its caller's name, and the caller's span says how it was recognized."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of instrumentations writes spans: pure functions that never raise, whatever the values."""

    name: str
    recognizes: Callable[[Span], bool]
    """Whether the span is written in this dialect; the registry asks in order, and the first to say yes reads it."""
    model_call: Callable[[Span], ModelCall | None]
    """The model call that the span records; None if it is not a model call, or is one without an answer."""
    usage: Callable[[Span], Usage]
    """The model's name and token counts of a model call."""
    failed: Callable[[Span], bool]
    """Whether the span is a model call without any answer: nothing was sampled."""
    conversation: Callable[[Span], Conversation]
    """The messages of a model call and the tools it was offered; empty if the content was not captured."""
    naming: Callable[[Span], Naming | None]
    """The agent that the span itself names as active, for it and the spans below it; None if it names none."""
    tool: Callable[[Span], str | None]
    """Name of the tool whose execution the span is; None if it is not a tool's execution."""
    request: Callable[[Span], Mapping[str, AttributeValue]] = attrgetter("attributes")
    """The sampling parameters that a model call requested, by the conventions' names (``gen_ai.request.*``)."""
