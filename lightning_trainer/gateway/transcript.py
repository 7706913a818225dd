"""What the engine sampled, collected from a response or from the chunks of a stream.

Ids and log-probabilities are taken as they come and never derived from text.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ChoiceTranscript:
    """One choice; grows while a stream goes on."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    unscored: int = 0
    """Tokens that came without a log-probability."""
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish_reason: str | None = None
    support: bytes | None = None
    """What each token could have been (``lightning_trainer.sampling``); None where it could be any."""
    routed_experts: bytes | None = None
    """Which experts its tokens and its prompt's went through (``lightning_trainer.experts``); None where not told."""
    support_unknown: str | None = None
    """Why that is not known; None where it is."""

    def add(self, choice: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        self.token_ids.extend(choice.get("token_ids") or ())
        logprobs = choice.get("logprobs") or {}
        for entry in logprobs.get("content") or ():
            self._add_logprob(entry.get("logprob"))
        for logprob in logprobs.get("token_logprobs") or ():  # as /v1/completions has them
            self._add_logprob(logprob)
        if text := message.get("content") or choice.get("text"):
            self.content.append(text)
        if message.get("reasoning"):
            self.reasoning.append(message["reasoning"])
        for position, call in enumerate(message.get("tool_calls") or ()):
            self._add_tool_call(call.get("index", position), call)
        if choice.get("finish_reason") is not None:
            self.finish_reason = choice["finish_reason"]

    def _add_logprob(self, logprob: float | None) -> None:
        if logprob is None:
            self.unscored += 1
        else:
            self.logprobs.append(logprob)

    def _add_tool_call(self, index: int, call: Mapping[str, Any]) -> None:
        known = self.tool_calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = call.get("function") or {}
        known["id"] = call.get("id") or known["id"]
        known["name"] = function.get("name") or known["name"]
        known["arguments"] += function.get("arguments") or ""

    @property
    def scored(self) -> bool:
        """Whether every token has its log-probability."""
        return self.unscored == 0 and len(self.logprobs) == len(self.token_ids)


@dataclass(slots=True)
class Transcript:
    """One response of the engine."""

    expected_choices: int
    id_prefix: str | None = None
    """Replaces the prefix of the engine's response id, where the caller's API has another."""
    response_id: str | None = None
    prompt_ids: list[int] = field(default_factory=list)
    choices: dict[int, ChoiceTranscript] = field(default_factory=dict)
    error: str | None = None
    """What the engine said went wrong in the middle of a stream."""
    support_known: bool = False
    """Whether the engine says what tokens were drawn from, and says nothing where that is all of the vocabulary."""

    def add_response(self, response: Mapping[str, Any]) -> None:
        """Add a whole response."""
        self._add(response, "message")

    def add_chunk(self, chunk: Mapping[str, Any]) -> None:
        """Add one chunk of a stream."""
        self._add(chunk, "delta")

    def add_supports(self, by_choice: Mapping[str, Mapping[str, str]]) -> None:
        """Add what the engine says of the supports of choices, by their index."""
        for index, said in by_choice.items():
            choice = self.choices.setdefault(int(index), ChoiceTranscript())
            choice.support_unknown = said.get("unknown")
            if "support" in said:
                choice.support = base64.b64decode(said["support"])
            if "routed_experts" in said:
                choice.routed_experts = base64.b64decode(said["routed_experts"])

    def _add(self, document: Mapping[str, Any], message: str) -> None:
        if document.get("error"):
            error = document["error"]
            self.error = str(error.get("message") if isinstance(error, dict) else error)
        if self.response_id is None and (response_id := document.get("id")):
            self.response_id = response_id if self.id_prefix is None else self._renamed(response_id)
        if prompt_ids := document.get("prompt_token_ids"):
            self.prompt_ids = self.prompt_ids or prompt_ids
        for choice in document.get("choices") or ():
            if prompt_ids := choice.get("prompt_token_ids"):  # where /v1/completions has them
                self.prompt_ids = self.prompt_ids or prompt_ids
            transcript = self.choices.setdefault(choice.get("index", 0), ChoiceTranscript())
            transcript.add(choice, choice.get(message) or {})

    def _renamed(self, response_id: str) -> str:
        return f"{self.id_prefix}{response_id.removeprefix('chatcmpl-')}"

    @property
    def output_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices.values())

    @property
    def complete(self) -> bool:
        """Whether every choice has come to its end."""
        ended = sum(choice.finish_reason is not None for choice in self.choices.values())
        return self.error is None and ended >= self.expected_choices

    @property
    def empty(self) -> bool:
        """Whether the engine has sent nothing that is worth a record."""
        return self.response_id is None and not self.choices
