"""What the model answered, gathered from a whole response or from the chunks of a stream.

Sampled token ids and log-probabilities are kept choice by choice; a choice whose two lists differ in length keeps
its ids and loses its log-probabilities, which is counted: a wrong pairing would be worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field as default
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.messages import as_json, field, output_message
from lightning_instrumentation.packing import pack_logprobs, pack_token_ids


@dataclass(slots=True)
class _ToolCall:
    id: str | None = None
    name: str = ""
    arguments: str = ""

    def as_wire(self) -> dict[str, Any]:
        return {"id": self.id, "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(slots=True)
class Choice:
    role: str = "assistant"
    content: list[str] = default(default_factory=list)
    reasoning: list[str] = default(default_factory=list)
    refusal: list[str] = default(default_factory=list)
    tool_calls: dict[int, _ToolCall] = default(default_factory=dict)
    finish_reason: str | None = None
    token_ids: list[int] = default(default_factory=list)
    logprobs: list[float] = default(default_factory=list)

    def add(self, said: Any) -> None:
        """Take a message, or the part of one that a chunk brings."""
        for into, text in (
            (self.content, field(said, "content")),
            (self.reasoning, field(said, "reasoning_content") or field(said, "reasoning")),
            (self.refusal, field(said, "refusal")),
        ):
            if isinstance(text, str) and text:
                into.append(text)
        for position, part in enumerate(field(said, "tool_calls") or ()):
            index = field(part, "index")
            call = self.tool_calls.setdefault(position if index is None else index, _ToolCall())
            function = field(part, "function") or field(part, "custom")
            call.id = field(part, "id") or call.id
            call.name += field(function, "name") or ""
            call.arguments += field(function, "arguments") or field(function, "input") or ""

    def add_tokens(self, choice: Any) -> None:
        self.token_ids.extend(field(choice, "token_ids") or ())
        for token in field(field(choice, "logprobs"), "content") or ():
            self.logprobs.append(float(field(token, "logprob")))

    def as_message(self) -> dict[str, Any]:
        return output_message(
            self.role,
            content="".join(self.content),
            reasoning="".join(self.reasoning),
            refusal="".join(self.refusal),
            tool_calls=[call.as_wire() for _, call in sorted(self.tool_calls.items())],
            finish_reason=self.finish_reason,
        )


class Answer:
    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}
        self._response_id: str | None = None
        self._model: str | None = None
        self._prompt_ids: Iterable[int] | None = None
        self._input_tokens: int | None = None
        self._output_tokens: int | None = None

    @property
    def finished(self) -> bool:
        """Whether every choice that began has ended for a reason."""
        return bool(self.choices) and all(choice.finish_reason for choice in self.choices.values())

    def add(self, part: Any) -> None:
        """Take a whole response or a chunk, as JSON or as the client's model object."""
        self._response_id = field(part, "id") or self._response_id
        self._model = field(part, "model") or self._model
        self._prompt_ids = field(part, "prompt_token_ids") or self._prompt_ids
        usage = field(part, "usage")
        if usage is not None:
            self._input_tokens = field(usage, "prompt_tokens")
            self._output_tokens = field(usage, "completion_tokens")
        for position, said in enumerate(field(part, "choices") or ()):
            index = field(said, "index")
            choice = self.choices.setdefault(position if index is None else index, Choice())
            choice.finish_reason = field(said, "finish_reason") or choice.finish_reason
            choice.add(field(said, "message") or field(said, "delta") or {})
            choice.add_tokens(said)

    def attributes(self, *, capture_content: bool) -> dict[str, Any]:
        choices = sorted(self.choices.items())
        read: dict[str, Any] = {
            semconv.RESPONSE_ID: self._response_id,
            semconv.RESPONSE_MODEL: self._model,
            semconv.INPUT_TOKENS: self._input_tokens,
            semconv.OUTPUT_TOKENS: self._output_tokens,
            semconv.CHOICES: len(choices),
            semconv.FINISH_REASONS: [choice.finish_reason or "" for _, choice in choices],
        }
        if capture_content and choices:
            read[semconv.OUTPUT_MESSAGES] = as_json([choice.as_message() for _, choice in choices])
        if self._prompt_ids is not None:
            read[semconv.PROMPT_TOKEN_IDS] = pack_token_ids(self._prompt_ids)
        for index, choice in choices:
            if not choice.token_ids:
                continue
            read[semconv.response_token_ids(index)] = pack_token_ids(choice.token_ids)
            if len(choice.logprobs) == len(choice.token_ids):
                read[semconv.response_logprobs(index)] = pack_logprobs(choice.logprobs)
            elif choice.logprobs:
                failures.note(
                    "logprobs-mismatch",
                    f"a response brought {len(choice.token_ids)} token ids and {len(choice.logprobs)} logprobs; "
                    "its logprobs are left out",
                )
        return {key: value for key, value in read.items() if value is not None}
