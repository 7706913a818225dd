"""Reading JSON whose fields cannot be relied on, and mapping providers' terms to OpenAI's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lightning_instrumentation.spans.messages import as_json
from lightning_instrumentation.wire.answer import Choice, ToolCall

_REASONS = {
    **{"stop": "stop", "complete": "stop", "end_turn": "stop", "stop_sequence": "stop"},
    **{"max_tokens": "length", "length": "length", "model_context_window_exceeded": "length"},
    **{"tool_call": "tool_calls", "tool_use": "tool_calls"},
    **{"safety": "content_filter", "content_filtered": "content_filter", "guardrail_intervened": "content_filter"},
}


def reason_of(said: Any) -> str | None:
    """Return a provider's finish reason in OpenAI's terms, or its own in lower case if OpenAI has no term for it."""
    return _REASONS.get(said.lower(), said.lower()) if isinstance(said, str) and said else None


def dicts(value: Any) -> list[dict[str, Any]]:
    """Return the dicts in a list; empty if it is not one."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, Iterable) else []


def dict_of(value: Any) -> Mapping[str, Any]:
    """Return a mapping; empty if the value is not one."""
    return value if isinstance(value, Mapping) else {}


def renamed(given: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of a request by OpenAI's names."""
    return {ours: given[theirs] for theirs, ours in names.items() if theirs in dict_of(given)}


def add_call(choice: Choice, key: Any, call_id: Any, name: Any, arguments: Any) -> None:
    """Add a tool call to a choice."""
    text = arguments if isinstance(arguments, str) else as_json(arguments or {})
    choice.tool_calls[key] = ToolCall(call_id, name or "", text)
