"""The two wire formats of judges' endpoints: OpenAI's chat completions and Anthropic's messages.

Source: OpenAI API reference, "Create chat completion" and "Structured outputs"; Anthropic API reference, "Messages" and
"Tool use" (a forced tool is how the schema of an answer is requested).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lightning_trainer.judges.models.budget import Usage, estimated_tokens

_TOOL = "answer"
_ANTHROPIC_VERSION = "2023-06-01"


@dataclass(frozen=True, slots=True)
class Request:
    """A question, independent of the wire format."""

    system: str
    messages: Sequence[tuple[str, str]]
    """Role (``user`` or ``assistant``) and text, alternating."""
    schema: Mapping[str, Any]
    """The schema of the answer."""
    max_tokens: int
    temperature: float | None

    @property
    def tokens(self) -> int:
        """Return an estimate of the tokens of everything that is sent, schema included."""
        return sum(map(estimated_tokens, (self.system, *(text for _, text in self.messages), json.dumps(self.schema))))


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer."""

    text: str
    cut: bool
    """Whether it ended at the token limit."""
    usage: Usage | None
    """None if the endpoint does not report it."""
    ended: str = ""
    """Why it ended, in the endpoint's words."""


class Api(Protocol):
    """One wire format, with the features that an endpoint is known to lack."""

    path: str
    """Appended to the endpoint's base URL."""

    def headers(self, key: str | None) -> dict[str, str]:
        """Return the headers of a request: the key, if there is one, and what the format requires."""
        ...

    def body(self, model: str, request: Request) -> dict[str, Any]:
        """Return a request's JSON body, without the features that were given up."""
        ...

    def reply(self, document: Mapping[str, Any]) -> Reply:
        """Parse an answer. Raises KeyError, TypeError, IndexError, or ValueError: it is not in this format."""
        ...

    def give_up(self, refusal: str) -> bool:
        """Stop using, from now on, the feature that a refusal (400, 422) names; return whether there was one."""
        ...


@dataclass
class ChatCompletions:
    """OpenAI's format, which most servers use."""

    structured: bool = True
    path: str = "/chat/completions"
    _limit: str = "max_tokens"
    _temperature: bool = True

    def headers(self, key: str | None) -> dict[str, str]:
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def body(self, model: str, request: Request) -> dict[str, Any]:
        messages = [{"role": "system", "content": request.system}]
        messages += [{"role": role, "content": text} for role, text in request.messages]
        body: dict[str, Any] = {"model": model, "messages": messages, self._limit: request.max_tokens}
        if request.temperature is not None and self._temperature:
            body["temperature"] = request.temperature
        if self.structured:
            schema = {"name": _TOOL, "strict": True, "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def reply(self, document: Mapping[str, Any]) -> Reply:
        choice = document["choices"][0]
        message = choice["message"]
        content = message.get("content")
        if isinstance(content, list):  # some servers send the answer in parts
            content = "".join(part["text"] for part in content if part.get("type") == "text")
        text = content or message.get("refusal") or ""
        ended = str(choice.get("finish_reason"))
        return Reply(text, ended == "length", _usage_of_completions(document.get("usage") or {}), ended)

    def give_up(self, refusal: str) -> bool:
        if self.structured and any(name in refusal for name in ("response_format", "json_schema", "schema")):
            self.structured = False
        elif self._limit == "max_tokens" and "max_tokens" in refusal:
            self._limit = "max_completion_tokens"  # its name in OpenAI's newer models
        elif self._temperature and "temperature" in refusal:
            self._temperature = False
        else:
            return False
        return True


@dataclass
class Messages:
    """Anthropic's format."""

    structured: bool = True
    path: str = "/messages"
    _temperature: bool = True

    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": _ANTHROPIC_VERSION} | ({} if key is None else {"x-api-key": key})

    def body(self, model: str, request: Request) -> dict[str, Any]:
        messages = [{"role": role, "content": text} for role, text in request.messages]
        body: dict[str, Any] = {"model": model, "system": request.system, "messages": messages}
        body["max_tokens"] = request.max_tokens
        if request.temperature is not None and self._temperature:
            body["temperature"] = request.temperature
        if self.structured:
            tool = {"name": _TOOL, "description": "Give the answer.", "input_schema": request.schema}
            body |= {"tools": [tool], "tool_choice": {"type": "tool", "name": _TOOL}}
        return body

    def reply(self, document: Mapping[str, Any]) -> Reply:
        blocks = document["content"]
        used = [block["input"] for block in blocks if block.get("type") == "tool_use"]
        said = "".join(block["text"] for block in blocks if block.get("type") == "text")
        text = "\n".join(json.dumps(one) for one in used) if used else said
        ended = str(document.get("stop_reason"))
        return Reply(text, ended == "max_tokens", _usage_of_messages(document.get("usage") or {}), ended)

    def give_up(self, refusal: str) -> bool:
        if self.structured and any(name in refusal for name in ("tool", "input_schema")):
            self.structured = False
        elif self._temperature and "temperature" in refusal:
            self._temperature = False
        else:
            return False
        return True


def _usage_of_completions(counts: Mapping[str, Any]) -> Usage | None:
    """Return what was spent. Some endpoints count a model's thoughts only in the total (xAI, Gemini)."""
    asked, answered = (_count(counts.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    if asked is None or answered is None:
        return None
    return Usage(asked, max(answered, (_count(counts.get("total_tokens")) or 0) - asked))


def _usage_of_messages(counts: Mapping[str, Any]) -> Usage | None:
    """Return what was spent. The endpoint counts tokens that it reads from its cache, or writes there, separately."""
    asked, answered = (_count(counts.get(name)) for name in ("input_tokens", "output_tokens"))
    if asked is None or answered is None:
        return None
    cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
    return Usage(asked + sum(_count(counts.get(name)) or 0 for name in cached), answered)


def _count(told: Any) -> int | None:
    return told if type(told) is int and told >= 0 else None


def api_of(name: str, *, structured: bool) -> Api:
    """Return the wire format of that name: ``openai`` or ``anthropic``."""
    return Messages(structured) if name == "anthropic" else ChatCompletions(structured)
