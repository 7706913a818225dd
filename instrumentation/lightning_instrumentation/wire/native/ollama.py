"""Ollama: ``/api/chat`` and ``/api/generate``, streamed as lines of JSON unless told not to. Source: Ollama's API."""

from __future__ import annotations

from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import content_parts, image_blob, input_messages
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
        return [_message(message) for message in body["messages"]]

    def answer(self) -> Answer:
        return OllamaAnswer()


class OllamaGenerate(OllamaChat):
    """The format of ``/api/generate``."""

    name = "ollama_generate"
    operation = semconv.TEXT_COMPLETION

    def fits(self, body: Json) -> bool:
        return isinstance(body.get("model"), str) and isinstance(body.get("prompt"), str) and bool(body["prompt"])

    def input_messages(self, body: Json) -> list[Any]:
        system = body.get("system")
        said: list[Any] = [{"role": "system", "parts": content_parts(system)}] if system else []
        if body.get("context"):  # the ids of earlier text: what follows is not the whole prompt
            said.append({"type": "context"})
        return [*said, {"role": "user", "parts": [*_images(body), *content_parts(body["prompt"])]}]


def _message(given: Any) -> Any:
    thought = dict_of(given).get("thinking")
    (message,) = input_messages([{**given, "reasoning": thought} if thought else given])
    images = _images(dict_of(given))
    return {**message, "parts": [*images, *message["parts"]]} if images and "role" in given else message


def _images(given: Json) -> list[dict[str, Any]]:
    """Return the images (base64) of a message or a request; Ollama puts them before its text."""
    images = given.get("images")
    return [image_blob(image) for image in images if isinstance(image, str)] if isinstance(images, list) else []
