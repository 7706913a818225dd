"""System prompts of an agent, and when each was first and last seen: a changed text is another prompt.

Spans are read newest first, for some hundredths of a second of processor time; the result says how far back that went.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from lightning_instrumentation import semconv

from lightning_trainer.dashboard.reading.conversation import raw_query
from lightning_trainer.otlp.span_codec import decode_span
from lightning_trainer.store.connection import Connection
from lightning_trainer.types import Span

_LONGEST_S = 0.06
_LONGEST_WALL_S = 0.3
_AT_ONCE = 200
_MOST_PROMPTS = 50
_CALLS = (semconv.CHAT, semconv.TEXT_COMPLETION, semconv.GENERATE_CONTENT)
_ROLES = ("system", "developer")


@dataclass(slots=True)
class Prompt:
    """A system prompt, and the calls that were made with it."""

    text: str
    raw: str
    """Query for the whole text, in the newest call with this prompt; see ``raw_query``."""
    first_ns: int
    last_ns: int
    rollout_id: str | None
    """The rollout of the newest call with this prompt."""
    calls: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The system prompts that were found, and how far back the search got."""

    found: list[Prompt]
    """The most recently seen first."""
    spans_read: int
    since_ns: int | None
    """Start of the oldest span that was looked at."""
    complete: bool
    """Whether nothing older is left."""


def read_prompts(connection: Connection, agent: str) -> Prompts:
    """Return an agent's system prompts, from the newest spans backwards, until time runs out or there are enough."""
    began, began_wall = time.thread_time(), time.monotonic()
    found: dict[str, Prompt] = {}
    name = agent.encode("utf-8", "replace")
    read, at, since = 0, 2**63 - 1, None
    while True:
        rows = connection.execute(
            "SELECT seq, start_ns, body, scope FROM spans WHERE seq < ? ORDER BY seq DESC LIMIT ?", (at, _AT_ONCE)
        ).fetchall()
        for seq, start_ns, body, scope in rows:
            read, at, since = read + 1, seq, start_ns
            if name in body:
                _note(found, decode_span(body, scope=scope, resource={}), agent)
        complete = len(rows) < _AT_ONCE
        late = time.thread_time() - began > _LONGEST_S or time.monotonic() - began_wall > _LONGEST_WALL_S
        if complete or late or len(found) >= _MOST_PROMPTS:
            newest_first = sorted(found.values(), key=lambda one: -one.last_ns)
            return Prompts(newest_first, read, since, complete)


def _note(found: dict[str, Prompt], span: Span, agent: str) -> None:
    attributes = span.attributes
    if attributes.get(semconv.AGENT_NAME) != agent or attributes.get(semconv.OPERATION) not in _CALLS:
        return
    said = system_prompt(span)
    if said is None:
        return
    text, attribute = said
    rollout = attributes.get(semconv.ROLLOUT_ID)
    one = found.get(text)
    if one is None:
        rollout_id = rollout if isinstance(rollout, str) else None
        one = found[text] = Prompt(text, raw_query(span, attribute), span.start_ns, span.start_ns, rollout_id)
    one.first_ns, one.last_ns = min(one.first_ns, span.start_ns), max(one.last_ns, span.start_ns)
    # Client and gateway both record a call, under the response's id.
    one.calls.add(str(attributes.get(semconv.RESPONSE_ID) or span.span_id))
    if isinstance(model := attributes.get(semconv.REQUEST_MODEL), str):
        one.models.add(model)


def system_prompt(span: Span) -> tuple[str, str] | None:
    """Return a call's system prompt, and the attribute that has it; None if the call has none."""
    given = span.attributes.get(semconv.SYSTEM_INSTRUCTIONS)
    if isinstance(given, str) and given:
        return "\n".join(_texts({"parts": _json(given)})) or given, semconv.SYSTEM_INSTRUCTIONS
    asked = span.attributes.get(semconv.INPUT_MESSAGES)
    messages = _json(asked) if isinstance(asked, str) else None
    told = [
        text
        for message in (messages if isinstance(messages, list) else ())
        if isinstance(message, dict) and message.get("role") in _ROLES
        for text in _texts(message)
    ]
    return ("\n".join(told), semconv.INPUT_MESSAGES) if told else None


def _texts(message: dict) -> Iterator[str]:
    parts = message.get("parts")
    if not isinstance(parts, list):
        parts = [{"content": message.get("content")}]
    for part in parts:
        text = part.get("content", part.get("text")) if isinstance(part, dict) else None
        if isinstance(text, str):
            yield text


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
