"""Chat completions: ``/v1/chat/completions``, of OpenAI and of every compatible server.

With ``return_token_ids``, vLLM puts the prompt's ids on the answer (on a stream's first chunk) and the sampled ids on
each choice. Source: OpenAI API reference, vLLM's OpenAI-compatible server.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from lightning_instrumentation.spans.messages import as_json, content_parts, input_messages
from lightning_instrumentation.spans.packing import NumberText
from lightning_instrumentation.wire.answer import Answer, Choice, Logprobs, ToolCall
from lightning_instrumentation.wire.api import Api, Json, Wanted, blank

_NOTHING_SAID = (None, [], {})
_NUMBERS = frozenset({float, int})
_logprob_of = itemgetter("logprob")


class ChatAnswer(Answer):
    """A chat completion, whole or streamed."""

    def add(self, part: Json) -> None:
        self.identify(part)
        if self.prompt_ids is None:
            self.prompt_ids = part.get("prompt_token_ids")
        usage = part.get("usage")
        if usage:
            self.input_tokens = usage.get("prompt_tokens")
            self.output_tokens = usage.get("completion_tokens")
        for position, said in enumerate(part.get("choices") or ()):
            choice = self.numbered(said, position)
            choice.finish_reason = said.get("finish_reason") or choice.finish_reason
            whole = said.get("message")
            _add_message(choice, whole or said.get("delta") or {}, streamed=not whole)
            if said.get("token_ids"):
                choice.add_token_ids(said["token_ids"])
            if said.get("logprobs"):
                choice.add_logprobs(_sampled(said["logprobs"]))


def _sampled(logprobs: Any) -> Logprobs:
    if isinstance(logprobs, NumberText):
        return logprobs
    sampled = list(map(_logprob_of, logprobs.get("content") or ()))
    # A token without a logprob leaves the choice with fewer logprobs than ids: readers notice, and none is invented.
    return sampled if _NUMBERS.issuperset(map(type, sampled)) else [float(one) for one in sampled if one is not None]


def _add_message(choice: Choice, said: Json, *, streamed: bool) -> None:
    """Add a message, or a chunk's part of one."""
    content = said.get("content")
    if isinstance(content, str):
        choice.content.append(content)
    elif content:
        _add_parts(choice, content)
    if isinstance(audio := said.get("audio"), dict) and isinstance(transcript := audio.get("transcript"), str):
        choice.content.append(transcript)
    reasoning = said.get("reasoning_content") or said.get("reasoning")
    if isinstance(reasoning, str):
        choice.reasoning.append(reasoning)
    if said.get("refusal"):
        choice.refusal.append(said["refusal"])
    if isinstance(only := said.get("function_call"), dict):  # the older form
        call = choice.tool_calls.setdefault(0, ToolCall())
        call.name += only.get("name") or ""
        call.arguments += only.get("arguments") or ""
    for position, part in enumerate(said.get("tool_calls") or ()):
        index = part.get("index")
        if index is None:
            index = _unnumbered(choice.tool_calls, position, part.get("id")) if streamed else position
        call = choice.tool_calls.setdefault(index, ToolCall())
        function = part.get("function") or part.get("custom") or {}
        call.id = part.get("id") or call.id
        call.name += function.get("name") or ""
        given = function.get("arguments") or function.get("input") or ""
        call.arguments += given if isinstance(given, str) else as_json(given)


def _add_parts(choice: Choice, content: Any) -> None:
    """Add content that is a list of parts, as Mistral's reasoning models write it."""
    for part in content_parts(content):
        into = {"text": choice.content, "reasoning": choice.reasoning}.get(str(part.get("type")))
        if into is not None and isinstance(text := part.get("content"), str):
            into.append(text)


def _unnumbered(calls: dict[int, ToolCall], position: int, id: str | None) -> int:
    """Return the index of a tool call's piece in a chunk of a server that numbers no calls: a new id begins a call."""
    newest = max(calls, default=None)
    if newest is None:
        return position
    if not id:
        return newest if position == 0 else position
    known = next((place for place, call in calls.items() if call.id == id), None)
    if known is not None:
        return known
    return newest + 1 if calls[newest].id else newest


class ChatCompletions(Api):
    """The format of chat completions."""

    name = "chat_completions"

    def fits(self, body: Json) -> bool:
        return isinstance(body.get("messages"), list | tuple)

    def wanted(self, body: Json) -> Wanted:
        return Wanted(token_ids="return_token_ids" not in body, logprobs="logprobs" not in body)

    def additions(self, wanted: Wanted) -> dict[str, Any]:
        return {
            **({"return_token_ids": True} if wanted.token_ids else {}),
            **({"logprobs": True} if wanted.logprobs else {}),
        }

    def input_messages(self, body: Json) -> list[Any]:
        return input_messages(body.get("messages"))

    def answer(self) -> Answer:
        return ChatAnswer()

    def hide(self, part: dict[str, Any], asked: Wanted) -> bool:
        changed = asked.token_ids and blank(part, "prompt_token_ids")
        for choice in part.get("choices") or ():
            if asked.token_ids:
                changed |= blank(choice, "token_ids")
            if asked.logprobs:
                changed |= blank(choice, "logprobs")
        return changed

    def is_ours_alone(self, part: Json, asked: Wanted) -> bool:
        choices = part.get("choices")
        if not choices or part.get("usage") is not None:
            return False
        return all(
            choice.get("finish_reason") is None and _says_nothing(choice.get("delta") or {}) for choice in choices
        )


def _says_nothing(delta: Json) -> bool:
    return all(value in _NOTHING_SAID for value in delta.values())
