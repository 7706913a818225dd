"""What was said in an attempt, in order: messages, tool calls and their results; each once, although calls repeat them.

A message of a call is left out if an earlier call of the same agent contained it as often. A call that both client and
gateway recorded is shown once, and so is a tool's run that both client and framework recorded.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from lightning_instrumentation import semconv

from lightning_trainer.dashboard.reading.message_images import (
    DRAWN,
    image_of,
    is_embedded,
    name_of,
    stored_name,
    with_pictures,
)
from lightning_trainer.ingest.dialects.lightning import is_ours
from lightning_trainer.store.media.exchange import SCHEME
from lightning_trainer.types import Span

_MOST_ENTRIES = 400
_CALLS = (semconv.CHAT, semconv.TEXT_COMPLETION, semconv.GENERATE_CONTENT)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a message: text, reasoning, a tool call, a tool's result, or media."""

    kind: str
    """text, reasoning, tool_call, tool_call_response, or another type, for which ``text`` is a reference or JSON."""
    text: str
    name: str | None = None
    """Name of a tool."""
    call_id: str | None = None
    """Id of the model's tool call."""
    raw: str | None = None
    """Query for the route that returns the whole text, if it is long."""
    image: str | None = None
    """Query for the route that returns its picture; ``text`` then describes the picture."""
    size: tuple[int, int] = (0, 0)
    """Width and height of the picture in pixels; (0, 0): not known."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, or one execution of a tool."""

    role: str
    parts: tuple[Part, ...]
    agent: str | None
    span_id: str
    at_ns: int
    seconds: float | None = None
    """Duration of a call or a tool."""
    error: str | None = None
    sampled: bool = False
    """Whether a model said it in this call."""


def conversation(spans: Sequence[Span]) -> tuple[list[Entry], int]:
    """Return the first entries, and how many there are."""
    entries = list(_entries(sorted(spans, key=lambda span: (span.start_ns, span.span_id))))
    entries.sort(key=lambda entry: entry.at_ns)
    return entries[:_MOST_ENTRIES], len(entries)


def _entries(spans: Sequence[Span]) -> Iterator[Entry]:
    shown: dict[str | None, Counter[str]] = {}
    answered: set[str] = set()
    called: set[str] = set()
    tools: dict[str, list[Span]] = {}
    for span in spans:
        if _operation(span) == semconv.EXECUTE_TOOL:
            tools.setdefault(str(span.attributes.get(semconv.TOOL_CALL_ID)), []).append(span)
    for span in spans:
        operation = _operation(span)
        agent = _text(span, semconv.AGENT_NAME)
        if operation == semconv.EXECUTE_TOOL:
            if not _is_told_by_ours(span, tools):
                yield _tool(span, agent, called)
        elif operation in _CALLS:
            response_id = _text(span, semconv.RESPONSE_ID)
            if response_id is not None and response_id in answered:
                continue
            if response_id is not None and (semconv.OUTPUT_MESSAGES in span.attributes):
                answered.add(response_id)
            for entry in _call(span, agent, shown.setdefault(agent, Counter()), tools.keys()):
                called |= {part.call_id for part in entry.parts if part.call_id is not None}
                yield entry


def _call(span: Span, agent: str | None, before: Counter[str], with_tools: Set[str]) -> Iterator[Entry]:
    asked = _messages(span, semconv.INPUT_MESSAGES)
    keys = [json.dumps(message, sort_keys=True, default=str) for message in asked]
    system = _text(span, semconv.SYSTEM_INSTRUCTIONS)
    if system is not None and system not in before:
        before[system] += 1
        parts = _system_parts(system, span)
        yield Entry("system", parts, agent, span.span_id, span.start_ns)
    here: Counter[str] = Counter()
    for key, message in zip(keys, asked, strict=True):
        here[key] += 1
        if here[key] <= before[key]:
            continue
        before[key] = here[key]
        if _is_shown_by(with_tools, message):
            continue
        parts = tuple(_parts(message, span, semconv.INPUT_MESSAGES))
        yield Entry(_role(message), parts, agent, span.span_id, span.start_ns)
    seconds = (span.end_ns - span.start_ns) / 1e9
    error = span.status_message or None
    answers = _messages(span, semconv.OUTPUT_MESSAGES)
    if not answers and error is not None:
        yield Entry("assistant", (), agent, span.span_id, span.end_ns, seconds, error, sampled=True)
    for message in answers:
        said = {key: value for key, value in message.items() if key != "finish_reason"}
        before[json.dumps(said, sort_keys=True, default=str)] += 1
        parts = tuple(_parts(message, span, semconv.OUTPUT_MESSAGES))
        yield Entry(_role(message), parts, agent, span.span_id, span.end_ns, seconds, error, sampled=True)


def _is_told_by_ours(span: Span, tools: Mapping[str, Sequence[Span]]) -> bool:
    """Whether the span is another instrumentation's, of a tool's run that a span of our client encloses."""
    call_id = _text(span, semconv.TOOL_CALL_ID)
    if call_id is None or is_ours(span):
        return False
    return any(
        is_ours(other) and other.start_ns <= span.start_ns and span.end_ns <= other.end_ns for other in tools[call_id]
    )


def _tool(span: Span, agent: str | None, called: Set[str]) -> Entry:
    name = _text(span, semconv.TOOL_NAME) or span.name
    # The model's message above already shows the arguments.
    said_above = _text(span, semconv.TOOL_CALL_ID) in called
    parts: list[Part] = []
    if not said_above and (arguments := _text(span, semconv.TOOL_CALL_ARGUMENTS)) is not None:
        parts.append(Part("tool_call", arguments, name, raw=raw_query(span, semconv.TOOL_CALL_ARGUMENTS)))
    if (result := _text(span, semconv.TOOL_CALL_RESULT)) is not None:
        parts += _with_pictures(result, span) or [
            Part("tool_call_response", result, name, raw=raw_query(span, semconv.TOOL_CALL_RESULT))
        ]
    seconds = (span.end_ns - span.start_ns) / 1e9
    return Entry("tool", tuple(parts), agent, span.span_id, span.start_ns, seconds, span.status_message or None)


def _with_pictures(result: str, span: Span) -> list[Part]:
    """Return the parts of a tool's result; none if it has no picture that the store keeps."""
    if f'"{SCHEME}' not in result:
        return []
    try:
        found = json.loads(result)
    except (ValueError, RecursionError):
        return []
    return list(_parts({"parts": with_pictures(found)}, span, semconv.TOOL_CALL_RESULT))


def raw_query(span: Span, attribute: str) -> str:
    """Return the query with which the route of whole texts returns a span's attribute."""
    return urlencode({"trace": span.trace_id, "span": span.span_id, "attribute": attribute})


def _parts(message: dict[str, Any], span: Span, attribute: str) -> Iterator[Part]:
    raw = raw_query(span, attribute)
    parts = message.get("parts")
    if not isinstance(parts, list):
        content = message.get("content")
        if content is None and isinstance(kind := message.get("type"), str):  # an item that is not a message
            yield Part(kind, _dumped({key: value for key, value in message.items() if key != "type"}), raw=raw)
            return
        yield Part("text", content if isinstance(content, str) else _dumped(content), raw=raw)
        return
    for part in parts:
        if not isinstance(part, dict):
            yield Part("text", _dumped(part), raw=raw)
            continue
        kind = str(part.get("type", "text"))
        if kind in ("text", "reasoning", "refusal"):
            content = part.get("content", part.get("text", ""))
            yield Part(kind, content if isinstance(content, str) else _dumped(content), raw=raw)
        elif kind == "tool_call":
            arguments, call_id = _dumped(part.get("arguments")), part.get("id")
            yield Part(
                kind, arguments, str(part.get("name", "tool")), call_id if isinstance(call_id, str) else None, raw
            )
        elif kind == "tool_call_response":
            result = part.get("response", part.get("result"))
            if pictured := with_pictures(result):
                yield from _parts({"parts": pictured}, span, attribute)
            else:
                yield Part(kind, _dumped(result), raw=raw)
        elif is_embedded(part):
            yield _embedded(part, raw)
        elif (name := stored_name(part)) is not None:
            about = f"{part.get('mime_type')}, {part.get('size')} bytes"
            query = f"{raw}&{urlencode({'name': name})}" if part.get("mime_type") in DRAWN else None
            yield Part("image" if query else str(part.get("modality")), about, raw=raw, image=query)
        else:
            yield Part(kind, _dumped({key: value for key, value in part.items() if key != "type"}), raw=raw)


def _embedded(part: dict[str, Any], raw: str) -> Part:
    image = image_of(part)
    told = part.get("mime_type") or part.get("modality") or "content"
    if image is None:
        return Part(
            str(part.get("modality", "blob")), f"{told}, {len(part['content']):,} characters of base64", raw=raw
        )
    about = f"{image.kind}, {image.width} × {image.height}, {len(image.body):,} bytes"
    query = f"{raw}&{urlencode({'name': name_of(part)})}"
    return Part("image", about, raw=raw, image=query, size=(image.width, image.height))


def _system_parts(text: str, span: Span) -> tuple[Part, ...]:
    try:
        parts = json.loads(text)
    except ValueError:
        parts = None
    if not isinstance(parts, list):
        return (Part("text", text, raw=raw_query(span, semconv.SYSTEM_INSTRUCTIONS)),)
    return tuple(_parts({"parts": parts}, span, semconv.SYSTEM_INSTRUCTIONS))


def _is_shown_by(with_tools: Set[str], message: dict[str, Any]) -> bool:
    """Whether a message holds only results of tools whose own spans show them, with their arguments and their time."""
    parts = message.get("parts")
    return (
        bool(parts)
        and isinstance(parts, list)
        and all(
            isinstance(part, dict) and part.get("type") == "tool_call_response" and str(part.get("id")) in with_tools
            for part in parts
        )
    )


def _messages(span: Span, attribute: str) -> list[dict[str, Any]]:
    text = _text(span, attribute)
    if text is None:
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [{"role": "unreadable", "content": text}]
    return [message for message in found if isinstance(message, dict)] if isinstance(found, list) else []


def _role(message: dict[str, Any]) -> str:
    return str(message.get("role", "message"))


def _dumped(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _operation(span: Span) -> str | None:
    return _text(span, semconv.OPERATION)


def _text(span: Span, name: str) -> str | None:
    value = span.attributes.get(name)
    return value if isinstance(value, str) and value else None
