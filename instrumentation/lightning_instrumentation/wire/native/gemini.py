"""Gemini: ``models/NAME:generateContent`` and ``:streamGenerateContent``. Source: Gemini API reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import blob
from lightning_instrumentation.wire.answer import Answer
from lightning_instrumentation.wire.api import Api, Json
from lightning_instrumentation.wire.native.fields import add_call, dict_of, dicts, reason_of, renamed

_ABOUT_A_PART = frozenset({"thought", "thoughtSignature"})


class GeminiAnswer(Answer):
    """A whole answer, or one of the answers in a stream, each of which brings the next parts."""

    def add(self, part: Json) -> None:
        self.identify({"id": part.get("responseId"), "model": part.get("modelVersion"), "error": part.get("error")})
        usage = dict_of(part.get("usageMetadata"))
        if usage.get("promptTokenCount") is not None:
            self.input_tokens = usage["promptTokenCount"]
        # Either count may be absent: if the whole answer is thoughts, that of the candidates is.
        sampled = [count for name in ("candidatesTokenCount", "thoughtsTokenCount") if (count := usage.get(name))]
        if sampled or usage.get("candidatesTokenCount") is not None:
            self.output_tokens = sum(sampled)
        if blocked := dict_of(part.get("promptFeedback")).get("blockReason"):
            self.error = f"the prompt was blocked: {blocked}"
        for position, candidate in enumerate(dicts(part.get("candidates"))):
            choice = self.numbered(candidate, position)
            for said in dicts(dict_of(candidate.get("content")).get("parts")):
                if "functionCall" in said:
                    call = dict_of(said["functionCall"])
                    add_call(choice, len(choice.tool_calls), call.get("id"), call.get("name"), call.get("args"))
                elif "text" in said:
                    (choice.reasoning if said.get("thought") else choice.content).append(said["text"] or "")
                elif said.keys() - _ABOUT_A_PART:
                    choice.others.append(_gemini_part(said))
            reason = reason_of(candidate.get("finishReason"))
            reason = "tool_calls" if reason == "stop" and choice.tool_calls else reason
            choice.finish_reason = reason or choice.finish_reason


_GEMINI_NAMES = {
    **{"temperature": "temperature", "topP": "top_p", "topK": "top_k", "maxOutputTokens": "max_tokens", "seed": "seed"},
    **{"stopSequences": "stop", "presencePenalty": "presence_penalty", "frequencyPenalty": "frequency_penalty"},
    "candidateCount": "n",
}


class Gemini(Api):
    """The format of Gemini."""

    name = "gemini"
    operation = semconv.GENERATE_CONTENT
    provider = "gcp.gemini"

    def model(self, url: str, body: Json) -> str:
        return unquote(urlsplit(url).path.rpartition("/")[2].partition(":")[0])

    def fits(self, body: Json) -> bool:
        return "contents" in body

    def asked(self, body: Json) -> Json:
        given = renamed(body.get("generationConfig"), _GEMINI_NAMES)
        declared = [one for tool in dicts(body.get("tools")) for one in dicts(tool.get("functionDeclarations"))]
        return {**given, "tools": [{"type": "function", **one} for one in declared]}

    def input_messages(self, body: Json) -> list[Any]:
        system = body.get("systemInstruction") or body.get("system_instruction")
        said = [] if not system else [{"role": "system", "parts": _gemini_parts(system)}]
        if cached := body.get("cachedContent") or body.get("cached_content"):
            # Only Gemini has the cached content: no reader may take what follows for the whole prompt.
            said.append({"type": "cachedContent", "cachedContent": cached})
        contents = body["contents"]
        for content in dicts([contents] if isinstance(contents, Mapping) else contents):
            parts = _gemini_parts(content)
            by_tool = [part for part in parts if part.get("type") == "tool_call_response"]
            rest = [part for part in parts if part.get("type") != "tool_call_response"]
            said += [{"role": "tool", "parts": [part]} for part in by_tool]
            if rest or not by_tool:
                said.append({"role": "assistant" if content.get("role") == "model" else "user", "parts": rest})
        return said

    def answer(self) -> Answer:
        return GeminiAnswer()


def _gemini_parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    return [_gemini_part(part) for part in dicts(dict_of(content).get("parts"))]


def _gemini_part(part: dict[str, Any]) -> dict[str, Any]:
    if "functionCall" in part:
        call = dict_of(part["functionCall"])
        return {"type": "tool_call", "id": call.get("id"), "name": call.get("name"), "arguments": call.get("args")}
    if "functionResponse" in part:
        done = dict_of(part["functionResponse"])
        return {
            "type": "tool_call_response",
            "id": done.get("id") or done.get("name"),
            "response": done.get("response"),
        }
    inline = dict_of(part.get("inlineData") or part.get("inline_data"))
    if isinstance(body := inline.get("data"), str):
        return blob(str(inline.get("mimeType") or inline.get("mime_type")), body)
    if "text" in part:
        return {"type": "reasoning" if part.get("thought") else "text", "content": part["text"]}
    return part
