"""Ollama: ``/api/chat`` and ``/api/generate``, streamed as lines of JSON unless told not to. Source: Ollama's API."""

from __future__ import annotations

from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.telemetry.messages import content_parts, input_messages
from lightning_instrumentation.wire.answer import Answer
from lightning_instrumentation.wire.api import Api, Json
from lightning_instrumentation.wire.native.fields import add_call, dict_of, dicts, reason_of, renamed


class OllamaAnswer(Answer):
    """A whole answer, or one line of a stream: each brings more text, the last one the counts."""

    def add(self, part: Json) -> None:
        self.identify({"model": part.get("model"), "error": part.get("error")})
        if self.error is not None:
            return
        choice = self.choice(0)
        message = dict_of(part.get("message"))
        for said, into in (
            (message.get("content") or part.get("response"), choice.content),
            (message.get("thinking") or part.get("thinking"), choice.reasoning),
        ):
            if said:
                into.append(said)
        for call in dicts(message.get("tool_calls")):
            function = dict_of(call.get("function"))
            add_call(choice, len(choice.tool_calls), call.get("id"), function.get("name"), function.get("arguments"))
        if part.get("done"):
            choice.finish_reason = "tool_calls" if choice.tool_calls else reason_of(part.get("done_reason") or "stop")
            self.input_tokens = part.get("prompt_eval_count")
            self.output_tokens = part.get("eval_count")


_OLLAMA_NAMES = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop")},
    **{"num_predict": "max_tokens", "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty"},
    "repeat_penalty": "repetition_penalty",
}


class OllamaChat(Api):
    """The format of ``/api/chat``."""

    name = "ollama_chat"
    provider = "ollama"
    lines = True

    def fits(self, body: Json) -> bool:
        # Without messages it is a request to load a model; other programs use such a path, too.
        return isinstance(body.get("model"), str) and isinstance(body.get("messages"), list) and bool(body["messages"])

    def asked(self, body: Json) -> Json:
        given = renamed(body.get("options"), _OLLAMA_NAMES)
        return {**given, "stream": body.get("stream", True), "tools": body.get("tools")}

    def input_messages(self, body: Json) -> list[Any]:
        return input_messages(body["messages"])

    def answer(self) -> Answer:
        return OllamaAnswer()


class OllamaGenerate(OllamaChat):
    """The format of ``/api/generate``."""

    name = "ollama_generate"
    operation = semconv.TEXT_COMPLETION

    def fits(self, body: Json) -> bool:
        return isinstance(body.get("model"), str) and isinstance(body.get("prompt"), str) and bool(body["prompt"])

    def input_messages(self, body: Json) -> list[Any]:
        said = (("system", body.get("system")), ("user", body["prompt"]))
        return [{"role": role, "parts": content_parts(text)} for role, text in said if text]
