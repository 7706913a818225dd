"""Messages in the events of a span, for spans whose attributes have none.

Three forms: ``gen_ai.client.inference.operation.details`` (since 1.37) has the attributes that a span would have;
``gen_ai.user.message`` and its like, with ``gen_ai.choice``, are one message each (1.28 to 1.36), whose fields are the
event's attributes (Strands) or JSON in ``gen_ai.event.content`` (Azure's SDKs); ``gen_ai.content.prompt`` and
``gen_ai.content.completion`` (1.27) have OpenAI's messages as JSON. Strands' content is blocks of Bedrock's Converse
API (``strands/telemetry/tracer.py`` of ``strands-agents`` 1.x, Apache-2.0).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import input_messages

from lightning_trainer.ingest.dialects.dialect import Message
from lightning_trainer.ingest.dialects.values import json_of, objects, tool_call_part
from lightning_trainer.types import Span, SpanEvent

_DETAILS = "gen_ai.client.inference.operation.details"
_CHOICE = "gen_ai.choice"
_PROMPT, _COMPLETION = "gen_ai.content.prompt", "gen_ai.content.completion"
_ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_BLOCKS = ("text", "toolUse", "toolResult", "reasoningContent", "image", "document", "video", "cachePoint")
ANSWERS = frozenset({_DETAILS, _CHOICE, _COMPLETION})
"""Names of the events that have an answer."""


def has_answer(span: Span) -> bool:
    """Whether an event has an answer, or says how it ended."""
    return any(
        event.name in ANSWERS and (event.name != _DETAILS or semconv.OUTPUT_MESSAGES in event.attributes)
        for event in span.events
    )


def written(span: Span, name: str) -> Any:
    """Return the parsed JSON of an attribute of the span, else of an event with the operation's details."""
    places = (span.attributes, *(event.attributes for event in span.events if event.name == _DETAILS))
    return next((json_of(place[name]) for place in places if name in place), None)


def written_messages(span: Span, name: str) -> tuple[Message, ...]:
    """Return the messages of an attribute, as ``written`` finds it."""
    messages = objects(written(span, name))
    return tuple(map(_with_plain_results, messages)) if name not in span.attributes else messages


def prompts(span: Span) -> tuple[Message, ...]:
    """Return the messages of a request from events of the older forms."""
    listed = [_message(_ROLES[event.name], _body(event)) for event in span.events if event.name in _ROLES]
    return tuple(listed) or tuple(_openai(_listed(span, _PROMPT, "gen_ai.prompt")))


def answers(span: Span) -> tuple[Message, ...]:
    """Return the answers from events of the older forms, each with its finish reason."""
    chosen = [_body(event) for event in span.events if event.name == _CHOICE]
    chosen.sort(key=lambda body: index if isinstance(index := body.get("index"), int) else 0)
    if chosen:
        return tuple(_answer(body) for body in chosen)
    return tuple(
        _answer(item) if "message" in item else _message("assistant", item)
        for item in _listed(span, _COMPLETION, "gen_ai.completion")
    )


def _listed(span: Span, event_name: str, name: str) -> tuple[Mapping[str, Any], ...]:
    found = (json_of(event.attributes.get(name)) for event in span.events if event.name == event_name)
    return next((listed for one in found if (listed := objects(one))), ())


def _body(event: SpanEvent) -> Mapping[str, Any]:
    body = json_of(event.attributes.get("gen_ai.event.content"))
    return body if isinstance(body, dict) else event.attributes


def _answer(body: Mapping[str, Any]) -> Message:
    said = body.get("message")
    parsed = json_of(said) if isinstance(said, str) else said
    if not (isinstance(parsed, Mapping) and parsed.keys() & {"content", "tool_calls", "role"}):
        # Only the content is given; if it is JSON that the model wrote, it is the answer's text.
        parsed = body if said is None else {"content": said}
    reason = body.get("finish_reason")
    return {**_message("assistant", parsed), "finish_reason": reason if isinstance(reason, str) and reason else None}


def _message(role: str, body: Mapping[str, Any]) -> Message:
    content, calls = body.get("content"), body.get("tool_calls")
    listed = json_of(content) if isinstance(content, str) and content.startswith("[") else None
    blocks = objects(listed)
    if blocks and all("type" not in block and any(kind in block for kind in _BLOCKS) for block in blocks):
        parts = [_block(block) for block in blocks]
        only_results = all(part["type"] == "tool_call_response" for part in parts)
        # Strands names a user's message after the results of tools in it, even if there is more in it.
        return {"role": "user" if role == "tool" and not only_results else role, "parts": parts}
    given = {
        "role": body.get("role") if isinstance(body.get("role"), str) else role,
        "content": list(blocks) if blocks and all("type" in block for block in blocks) else content,
        "tool_calls": list(objects(json_of(calls) if isinstance(calls, str) else calls)),
        "tool_call_id": body.get("id"),
        "name": body.get("name"),
    }
    (message,) = _openai([given])
    return message


def _openai(messages: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    yield from (one for one in input_messages([dict(message) for message in messages]) if isinstance(one, Mapping))


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    kind = next(name for name in _BLOCKS if name in block)
    value = block[kind]
    match kind, value:
        case "text", _:
            return {"type": "text", "content": value}
        case "toolUse", Mapping():
            return tool_call_part(value.get("toolUseId"), value.get("name"), value.get("input"))
        case "toolResult", Mapping():
            response = _plain_result(value.get("content"))
            return {"type": "tool_call_response", "id": value.get("toolUseId"), "response": response}
        case "reasoningContent", {"reasoningText": {"text": str(thought)}}:
            return {"type": "reasoning", "content": thought}
    return {"type": kind, "content": value}


def _plain_result(content: Any) -> Any:
    """Return the text or the data of a tool's result that consists of blocks; anything else is returned unchanged."""
    blocks = objects(content)
    if not blocks or len(blocks) != len(content):
        return content
    if all(block.keys() == {"text"} and isinstance(block["text"], str) for block in blocks):
        return "".join(block["text"] for block in blocks)
    return blocks[0]["json"] if len(blocks) == 1 and blocks[0].keys() == {"json"} else content


def _with_plain_results(message: Message) -> Message:
    parts = message.get("parts")
    if not isinstance(parts, list):
        return message
    return {
        **message,
        "parts": [
            {**part, "response": _plain_result(part["response"])}
            if isinstance(part, Mapping) and part.get("type") == "tool_call_response" and "response" in part
            else part
            for part in parts
        ],
    }
