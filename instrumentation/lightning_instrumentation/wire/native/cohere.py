"""Cohere: ``/v2/chat``, whole and as server-sent events. Source: Cohere API reference, Chat v2."""

from __future__ import annotations

from typing import Any

from lightning_instrumentation.spans.messages import input_messages
from lightning_instrumentation.wire.answer import Answer, ToolCall
from lightning_instrumentation.wire.api import Api, Json
from lightning_instrumentation.wire.native.fields import add_call, dict_of, dicts, reason_of, renamed


class CohereAnswer(Answer):
    """A whole answer, or one event of a stream."""

    def add(self, part: Json) -> None:
        kind = part.get("type")
        if not isinstance(kind, str):
            self.identify(part)
            self._add_message(dict_of(part.get("message")))
            self._add_end(part)
            return
        self.identify({"id": part.get("id")})
        delta = dict_of(part.get("delta"))
        if kind == "message-end":
            self._add_end(delta)
        elif kind in ("content-start", "content-delta", "tool-plan-delta"):
            said = dict_of(delta.get("message"))
            self._add_message({**said, "content": [dict_of(said.get("content"))]})
        elif kind in ("tool-call-start", "tool-call-delta"):
            call = self.choice(0).tool_calls.setdefault(part.get("index") or 0, ToolCall())
            said = dict_of(dict_of(delta.get("message")).get("tool_calls"))
            function = dict_of(said.get("function"))
            call.id = said.get("id") or call.id
            call.name += function.get("name") or ""
            call.arguments += function.get("arguments") or ""

    def _add_message(self, message: Json) -> None:
        choice = self.choice(0)
        if message.get("tool_plan"):
            choice.reasoning.append(message["tool_plan"])
        for said in dicts(message.get("content")):
            choice.content += [said["text"]] if said.get("text") else []
            choice.reasoning += [said["thinking"]] if said.get("thinking") else []
        for call in dicts(message.get("tool_calls")):
            function = dict_of(call.get("function"))
            add_call(choice, len(choice.tool_calls), call.get("id"), function.get("name"), function.get("arguments"))

    def _add_end(self, end: Json) -> None:
        self.choice(0).finish_reason = reason_of(end.get("finish_reason"))
        usage = dict_of(end.get("usage"))
        counted = dict_of(usage.get("tokens")) or dict_of(usage.get("billed_units"))
        self.input_tokens = counted.get("input_tokens")
        self.output_tokens = counted.get("output_tokens")


class CohereChat(Api):
    """The format of Cohere's chat."""

    name = "cohere_chat"
    provider = "cohere"

    def fits(self, body: Json) -> bool:
        return isinstance(body.get("model"), str) and isinstance(body.get("messages"), list)

    def asked(self, body: Json) -> Json:
        return {**body, **renamed(body, {"p": "top_p", "k": "top_k"})}

    def input_messages(self, body: Json) -> list[Any]:
        return input_messages(body["messages"])

    def answer(self) -> Answer:
        return CohereAnswer()
