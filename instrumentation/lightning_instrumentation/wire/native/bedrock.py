"""Amazon Bedrock: ``/model/ID/converse`` and ``/converse-stream``. Source: Bedrock API reference, Converse."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from lightning_instrumentation.spans.messages import as_json, blob, tool_text
from lightning_instrumentation.wire.answer import Answer, Choice, ToolCall
from lightning_instrumentation.wire.api import Api, Json
from lightning_instrumentation.wire.native.fields import dict_of, dicts, reason_of, renamed

_READ = frozenset({"text", "reasoningContent", "toolUse", "citationsContent"})


class ConverseAnswer(Answer):
    """A whole answer, or one event of a stream; distinguished by its fields."""

    def add(self, part: Json) -> None:
        if isinstance(part.get("message"), str):
            self.error = part["message"]
            return
        choice = self.choice(0)
        for position, block in enumerate(dicts(dict_of(dict_of(part.get("output")).get("message")).get("content"))):
            _add_block(choice, position, block)
            if _READ.isdisjoint(block):
                choice.others.append(_media(block) or block)
        position = part.get("contentBlockIndex") or 0
        _add_block(choice, position, dict_of(part.get("start")))
        _add_block(choice, position, dict_of(part.get("delta")))
        choice.finish_reason = reason_of(part.get("stopReason")) or choice.finish_reason
        if usage := dict_of(part.get("usage")):
            # `inputTokens` counts only those that were not cached.
            read = [usage.get(name) for name in ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")]
            counts = [count for count in read if isinstance(count, int)]
            self.input_tokens, self.output_tokens = sum(counts) if counts else None, usage.get("outputTokens")


def _add_block(choice: Choice, position: int, block: Json) -> None:
    if block.get("text"):
        choice.content.append(block["text"])
    choice.content += [cited["text"] for cited in _cited(block) if isinstance(cited.get("text"), str)]
    thought = dict_of(block.get("reasoningContent"))
    if text := thought.get("text") or dict_of(thought.get("reasoningText")).get("text"):
        choice.reasoning.append(text)
    if use := dict_of(block.get("toolUse")):
        call = choice.tool_calls.setdefault(position, ToolCall())
        call.id, call.name = use.get("toolUseId") or call.id, use.get("name") or call.name
        given = use.get("input")
        call.arguments += given if isinstance(given, str) else "" if given is None else as_json(given)


def _cited(block: Json) -> list[dict[str, Any]]:
    """Return the texts of a block that cites their sources."""
    return dicts(dict_of(block.get("citationsContent")).get("content"))


_CONVERSE_NAMES = {"temperature": "temperature", "topP": "top_p", "maxTokens": "max_tokens", "stopSequences": "stop"}


class Converse(Api):
    """The format of Bedrock's Converse."""

    name = "bedrock_converse"
    provider = "aws.bedrock"
    within = "/model/"

    def model(self, url: str, body: Json) -> str:
        return unquote(urlsplit(url).path.rpartition("/model/")[2].rpartition("/")[0])

    def fits(self, body: Json) -> bool:
        return isinstance(body.get("messages"), list)

    def asked(self, body: Json) -> Json:
        given = renamed(body.get("inferenceConfig"), _CONVERSE_NAMES)
        tools = [dict_of(tool.get("toolSpec")) for tool in dicts(dict_of(body.get("toolConfig")).get("tools"))]
        named = [
            {"type": "function", **tool, "parameters": dict_of(tool.get("inputSchema")).get("json")} for tool in tools
        ]
        return {**given, "tools": [{k: v for k, v in tool.items() if k != "inputSchema"} for tool in named]}

    def input_messages(self, body: Json) -> list[Any]:
        said = [{"role": "system", "parts": [_converse_part(one) for one in dicts(body.get("system"))]}]
        for message in dicts(body["messages"]):
            parts = [_converse_part(block) for block in dicts(message.get("content"))]
            by_tool = [part for part in parts if part.get("type") == "tool_call_response"]
            rest = [part for part in parts if part.get("type") != "tool_call_response"]
            said += [{"role": "tool", "parts": [part]} for part in by_tool]
            if rest or not by_tool:
                said.append({"role": message.get("role"), "parts": rest})
        return [message for message in said if message["parts"] or message["role"] != "system"]

    def answer(self) -> Answer:
        return ConverseAnswer()


def _converse_part(block: dict[str, Any]) -> dict[str, Any]:
    if "text" in block:
        return {"type": "text", "content": block["text"]}
    if cited := _cited(block):
        return {"type": "text", "content": "".join(str(one.get("text") or "") for one in cited)}
    if "toolUse" in block:
        use = dict_of(block["toolUse"])
        return {"type": "tool_call", "id": use.get("toolUseId"), "name": use.get("name"), "arguments": use.get("input")}
    if "toolResult" in block:
        done = dict_of(block["toolResult"])
        said = [
            _media(one) or one if "json" not in one else {"type": "text", "text": as_json(one["json"])}
            for one in dicts(done.get("content"))
        ]
        texts = [{"type": "text", **one} if "text" in one else one for one in said]
        return {"type": "tool_call_response", "id": done.get("toolUseId"), "response": tool_text(texts)}
    thought = dict_of(dict_of(block.get("reasoningContent")).get("reasoningText"))
    return {"type": "reasoning", "content": thought.get("text")} if thought else _media(block) or block


def _media(block: Json) -> dict[str, Any] | None:
    """Return the part for a block's image, document, video, or sound; None if it has none."""
    for modality in ("image", "document", "video", "audio"):
        given = dict_of(block.get(modality))
        source = dict_of(given.get("source"))
        if isinstance(body := source.get("bytes"), str):
            kind = "application" if modality == "document" else modality
            return blob(f"{kind}/{given.get('format')}", body)
        if isinstance(uri := dict_of(source.get("s3Location")).get("uri"), str):
            return {"type": "uri", "modality": modality, "uri": uri}
    return None
