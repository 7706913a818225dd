"""The model's answer, collected from a whole answer or from the events of a stream.

Sampled token ids and logprobs are kept per choice; a choice whose two lists differ in length keeps its ids and loses
its logprobs, which is counted: a wrong pairing would be worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.spans.messages import as_json, output_message
from lightning_instrumentation.spans.packing import (
    NumberText,
    pack_logprobs,
    recorded_token_ids,
    unpack_logprobs,
    unpack_token_ids,
)

TokenIds = list[int] | NumberText
Logprobs = list[float] | NumberText
"""Parsed, or as the text that arrived."""


@dataclass(slots=True)
class ToolCall:
    """A tool call of the model."""

    id: str | None = None
    name: str = ""
    arguments: str = ""

    def as_wire(self) -> dict[str, Any]:
        """Return the call in the form of chat completions."""
        return {"id": self.id, "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(slots=True)
class Choice:
    """One choice of an answer."""

    role: str = "assistant"
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    tool_calls: dict[Any, ToolCall] = field(default_factory=dict)
    others: list[Mapping[str, Any]] = field(default_factory=list)
    """Parts that the conventions do not know, unchanged: what a tool of the provider's did, for example."""
    finish_reason: str | None = None
    token_ids: TokenIds = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)

    def add_token_ids(self, ids: TokenIds) -> None:
        """Append sampled ids; a single piece of JSON text stays unparsed."""
        self.token_ids = _joined(self.token_ids, ids, unpack_token_ids)

    def add_logprobs(self, logprobs: Logprobs) -> None:
        """Append logprobs, in nats; a single piece of JSON text stays unparsed."""
        self.logprobs = _joined(self.logprobs, logprobs, unpack_logprobs)

    def as_message(self) -> dict[str, Any]:
        """Return the choice as a message in the GenAI conventions' form."""
        message = output_message(
            self.role,
            content="".join(self.content),
            reasoning="".join(self.reasoning),
            refusal="".join(self.refusal),
            tool_calls=[call.as_wire() for _, call in sorted(self.tool_calls.items())],
            finish_reason=self.finish_reason,
        )
        message["parts"].extend(self.others)
        return message


class Answer:
    """A parsed answer. Subclasses read one wire format; the result is the same for all."""

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}
        self.response_id: str | None = None
        self.model: str | None = None
        self.prompt_ids: TokenIds | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.error: str | None = None
        """The error that the server reported, in an answer or in the middle of a stream."""

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a whole answer or one event of a stream."""
        raise NotImplementedError

    @property
    def begun(self) -> bool:
        """Whether anything of an answer has arrived."""
        return bool(self.choices) or self.response_id is not None or self.error is not None

    @property
    def finished(self) -> bool:
        """Whether every choice has a finish reason."""
        return bool(self.choices) and all(choice.finish_reason for choice in self.choices.values())

    def numbered(self, part: Mapping[str, Any], position: int) -> Choice:
        """Return the choice that a part of the answer names by its ``index``, else by its position."""
        index = part.get("index")
        return self.choice(position if index is None else index)

    def choice(self, index: int) -> Choice:
        """Return a choice, new if the answer has not had it yet."""
        found = self.choices.get(index)
        if found is None:  # not ``setdefault``: every event of a stream would create one to throw away
            found = self.choices[index] = Choice()
        return found

    def identify(self, part: Mapping[str, Any]) -> None:
        """Read the fields that identify the answer."""
        self.response_id = part.get("id") or self.response_id
        self.model = part.get("model") or self.model
        if part.get("error"):
            error = part["error"]
            self.error = str(error.get("message", error) if isinstance(error, Mapping) else error)

    def attributes(self, *, capture_content: bool) -> dict[str, Any]:
        """Return the answer as span attributes: ids, counts, tokens, and the texts if content is captured."""
        choices = sorted(self.choices.items())
        read: dict[str, Any] = {}
        if self.response_id is not None:
            read[semconv.RESPONSE_ID] = self.response_id
        if self.model is not None:
            read[semconv.RESPONSE_MODEL] = self.model
        if (input_tokens := self._known_input_tokens()) is not None:
            read[semconv.INPUT_TOKENS] = input_tokens
        if (output_tokens := self._known_output_tokens()) is not None:
            read[semconv.OUTPUT_TOKENS] = output_tokens
        if choices:
            read[semconv.CHOICES] = len(choices)
            read[semconv.FINISH_REASONS] = tuple([choice.finish_reason or "" for _, choice in choices])
            if capture_content:
                read[semconv.OUTPUT_MESSAGES] = as_json([choice.as_message() for _, choice in choices])
        if self.prompt_ids is not None:
            read[semconv.PROMPT_TOKEN_IDS] = _recorded(self.prompt_ids, recorded_token_ids)
        for index, choice in choices:
            if not choice.token_ids:
                continue
            read[semconv.response_token_ids(index)] = _recorded(choice.token_ids, recorded_token_ids)
            if _count(choice.logprobs) == _count(choice.token_ids):
                read[semconv.response_logprobs(index)] = _recorded(choice.logprobs, pack_logprobs)
            elif choice.logprobs:
                failures.note(
                    "logprobs-mismatch",
                    f"a response brought {_count(choice.token_ids)} token ids and {_count(choice.logprobs)} logprobs; "
                    "its logprobs are left out",
                )
        return read

    def _known_input_tokens(self) -> int | None:
        """Return the prompt's token count; it is that of the exact ids if the answer tells no usage, as a stream whose
        caller did not request it."""
        if self.input_tokens is None and self.prompt_ids is not None:
            return _count(self.prompt_ids)
        return self.input_tokens

    def _known_output_tokens(self) -> int | None:
        chosen = self.choices.values()
        if self.output_tokens is None and chosen and all(choice.token_ids for choice in chosen):
            return sum(_count(choice.token_ids) for choice in chosen)
        return self.output_tokens


def _joined(before: Any, more: Any, read: Callable[[str], Any]) -> Any:
    """Return both as one list, extending the first; a single text stays a text."""
    if isinstance(more, NumberText):
        if not before:
            return more
        more = read(more)
    joined = list(read(before)) if isinstance(before, NumberText) else before
    joined.extend(more)
    return joined


def _recorded(numbers: list[Any] | NumberText, pack: Callable[[list[Any]], bytes | str]) -> bytes | str:
    return str(numbers) if isinstance(numbers, NumberText) else pack(numbers)


def _count(numbers: list[Any] | NumberText) -> int:
    return numbers.size if isinstance(numbers, NumberText) else len(numbers)
