"""What every dialect says of a model call, in one vocabulary, no matter who recorded it.

A :class:`ModelCall` is cheap to read and is read of every span; a :class:`Conversation` is what was said, which is
costly to read (JSON inside of attributes) and is asked for only where the words matter. Messages are in the GenAI
conventions' form: a role and a list of parts (``text``, ``reasoning``, ``tool_call``, ``tool_call_response`` ...).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lightning_trainer.types import Span

Message = Mapping[str, Any]
"""``{"role": ..., "parts": [...]}``, on an answer also ``"finish_reason"``."""


class ModelCall(NamedTuple):
    """One request to a model that was answered, as one span tells of it."""

    span: Span
    dialect: str
    response_id: str | None
    finish_reasons: tuple[str | None, ...]
    """One a choice; None where the span does not say."""
    complete: bool | None
    """False where the span shows that the answer was cut off, None where it shows neither."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the server said of itself and counted; None where the span does not say."""

    model: str | None
    """The model that answered, else the one that was asked."""
    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said in a call; empty where the span has no content (capturing it is an option everywhere)."""

    input_messages: tuple[Message, ...] = ()
    output_messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """Definitions of the tools that were offered, each with a ``name``."""

    def __post_init__(self) -> None:
        """Whatever a stranger wrote, a role is a text and parts are objects whose type and name are texts."""
        for field in ("input_messages", "output_messages"):
            messages = getattr(self, field)
            if not all(map(_is_message, messages)):
                object.__setattr__(self, field, tuple(map(_as_message, messages)))

    @property
    def tools_called(self) -> tuple[str, ...]:
        """Names of the tools that the answer calls, in order."""
        return tuple(
            part["name"]
            for message in self.output_messages
            for part in message.get("parts") or ()
            if isinstance(part, Mapping) and part.get("type") == "tool_call" and isinstance(part.get("name"), str)
        )


_TEXT_OR_NONE = (str, type(None))


def _is_message(message: Message) -> bool:
    parts = message.get("parts")
    return isinstance(message.get("role"), _TEXT_OR_NONE) and isinstance(parts, list) and all(map(_is_part, parts))


def _is_part(part: Any) -> bool:
    return isinstance(part, Mapping) and all(isinstance(part.get(name), _TEXT_OR_NONE) for name in ("type", "name"))


def _as_message(message: Message) -> Message:
    """Leave out what is of another type than it should be."""
    role, parts = message.get("role"), message.get("parts")
    return {
        **message,
        "role": role if isinstance(role, str) else None,
        "parts": [part for part in parts if _is_part(part)] if isinstance(parts, list) else [],
    }


@dataclass(frozen=True, slots=True)
class Naming:
    """An agent's name on a span, and how it was recognized."""

    agent: str
    source: str | None
    """None: the span repeats what its caller said, who knows how."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one family of instrumentations writes spans: pure functions, none of which raises on a strange value."""

    name: str
    recognizes: Callable[[Span], bool]
    model_call: Callable[[Span], ModelCall | None]
    """None where the span is not a model call, or is one that got no answer."""
    usage: Callable[[Span], Usage]
    """Of a model call."""
    failed: Callable[[Span], bool]
    """Whether the span is a model call that got no answer at all: nothing was sampled."""
    conversation: Callable[[Span], Conversation]
    naming: Callable[[Span], Naming | None]
    """Who the span itself says is speaking in it and below it."""
    tool: Callable[[Span], str | None]
    """Name of the tool whose execution the span is."""
