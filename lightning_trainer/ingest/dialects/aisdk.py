"""Vercel's AI SDK: ``ai.operationId`` and ``ai.*`` attributes, as its own telemetry writes them (``ai`` 4 to 6).

Read from ``ai`` 5.0 (Apache-2.0) and its ``@ai-sdk/otel``'s ``LegacyOpenTelemetry``. A span ``ai.generateText``
encloses spans ``ai.generateText.doGenerate``, each of which is one request to a model. Since version 7 the SDK writes
the GenAI conventions unless the legacy form is asked for. Traceloop's Node SDK moves the texts to OpenLLMetry's
attributes, and loses some (``ai-sdk-transformations.ts`` of ``traceloop/openllmetry-js``, Apache-2.0).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects import openllmetry
from lightning_trainer.ingest.dialects.dialect import Conversation, Dialect, Message, ModelCall, Naming, Usage
from lightning_trainer.ingest.dialects.values import count, json_of, objects, text, tool_call_part
from lightning_trainer.types import Span, SpanStatus

NAME = "aisdk"
_OPERATION = "ai.operationId"
_CALL_OPERATIONS = frozenset(
    f"ai.{one}"
    for one in ("generateText.doGenerate", "streamText.doStream", "generateObject.doGenerate", "streamObject.doStream")
)
_REASONS = {"tool-calls": "tool_calls", "content-filter": "content_filter"}
"""Its finish reasons, mapped to OpenAI's, which the other dialects use."""
_NO_END = ("error", "unknown", "other")


def recognizes(span: Span) -> bool:
    """Look for ``ai.operationId``, which every span of the SDK has."""
    return _OPERATION in span.attributes


def model_call(span: Span) -> ModelCall | None:
    """Read a ``doGenerate`` or ``doStream`` span, never the ``ai.generateText`` or ``ai.streamText`` around it."""
    if not _is_call(span) or not _is_answered(span):
        return None
    reason = text(span, "ai.response.finishReason")
    return ModelCall(
        span=span,
        dialect=NAME,
        response_id=text(span, "ai.response.id", semconv.RESPONSE_ID),
        finish_reasons=(None if reason is None else _REASONS.get(reason, reason),),
        complete=False if span.status is SpanStatus.ERROR or reason in _NO_END else None if reason is None else True,
    )


def usage(span: Span) -> Usage:
    """Prefer the GenAI conventions' counts, then ``ai.usage.*`` under its names in version 5 and in version 4."""
    return Usage(
        model=text(span, "ai.response.model", "ai.model.id"),
        input_tokens=count(span, semconv.INPUT_TOKENS, "ai.usage.inputTokens", "ai.usage.promptTokens"),
        output_tokens=count(span, semconv.OUTPUT_TOKENS, "ai.usage.outputTokens", "ai.usage.completionTokens"),
    )


def failed(span: Span) -> bool:
    """Whether a model call ended in an error without a response."""
    return _is_call(span) and not _is_answered(span) and span.status is SpanStatus.ERROR


def _is_call(span: Span) -> bool:
    return span.attributes.get(_OPERATION) in _CALL_OPERATIONS


def _is_answered(span: Span) -> bool:
    return text(span, "ai.response.finishReason", "ai.response.id") is not None


def conversation(span: Span) -> Conversation:
    """Read the JSON of ``ai.prompt.messages`` and ``ai.prompt.tools``, and the answer from ``ai.response.*``; read
    whatever is missing there from the attributes that Traceloop moves it to."""
    moved = openllmetry.conversation(span)
    return Conversation(
        input_messages=tuple(_message(item) for item in objects(json_of(span.attributes.get("ai.prompt.messages"))))
        or _moved_prompt(moved.input_messages),
        output_messages=_answer(span) or _moved_answer(span, moved.output_messages),
        tools=tuple(_tools(span)) or moved.tools,
    )


def _moved_prompt(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return the messages, with their tool calls and results; empty if a result has lost its call.

    Traceloop moves a message without text as the JSON of its parts, and a message with text without its other parts.
    """
    read = tuple({**message, "parts": _moved_parts(message)} for message in messages)
    called, answered = (
        {str(part.get("id")) for message in read for part in message["parts"] if part.get("type") == kind}
        for kind in ("tool_call", "tool_call_response")
    )
    return read if answered <= called else ()


def _moved_parts(message: Message) -> list[Mapping[str, Any]]:
    parts = message.get("parts") or []
    written = json_of(parts[0].get("content")) if len(parts) == 1 else None
    inside = objects(written)
    are_parts = inside and all(part.get("type") in ("tool-call", "tool-result") for part in inside)
    return list(map(_part, inside)) if are_parts else parts


def _moved_answer(span: Span, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the answer; empty if it called tools and the calls are lost, as those of version 5 and later are."""
    answers = openllmetry.numbered_answers(span) or messages  # the latter lose a text next to calls
    lost = text(span, "ai.response.finishReason") == "tool-calls" and not Conversation((), answers).tools_called
    return () if lost else answers


def _answer(span: Span) -> tuple[Message, ...]:
    parts: list[Mapping[str, Any]] = []
    if reasoning := text(span, "ai.response.reasoning"):
        parts.append({"type": "reasoning", "content": reasoning})
    if said := text(span, "ai.response.text", "ai.response.object"):
        parts.append({"type": "text", "content": said})
    called = objects(json_of(span.attributes.get("ai.response.toolCalls")))
    parts += [_part({"type": "tool-call", **call}) for call in called]
    return ({"role": "assistant", "parts": parts},) if parts else ()


def _message(item: Mapping[str, Any]) -> Message:
    content = item.get("content")
    parts = [{"type": "text", "content": content}] if isinstance(content, str) else list(map(_part, objects(content)))
    return {"role": item.get("role"), "parts": parts}


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    match part.get("type"):
        case "text" | "reasoning" as kind:
            return {"type": kind, "content": part.get("text")}
        case "tool-call":
            return tool_call_part(part.get("toolCallId"), part.get("toolName"), part.get("input", part.get("args")))
        case "tool-result":
            # Since version 5 the output is an object with a type and a value; before, the result is the value itself.
            output = part.get("output")
            value = output.get("value", output) if isinstance(output, Mapping) else part.get("result", output)
            return {"type": "tool_call_response", "id": part.get("toolCallId"), "response": value}
    return dict(part)


def _tools(span: Span) -> Iterable[Mapping[str, Any]]:
    written = span.attributes.get("ai.prompt.tools")
    for one in written if isinstance(written, tuple) else ():
        tool = json_of(one) if isinstance(one, str) else None
        if isinstance(tool, dict) and tool.get("name"):
            parameters = tool.get("inputSchema", tool.get("parameters"))
            yield {
                "type": "function",
                "name": tool["name"],
                "description": tool.get("description"),
                "parameters": parameters,
            }


def naming(span: Span) -> Naming | None:
    """Take ``gen_ai.agent.name``, which its metadata or another instrumentation may give, else ``functionId``."""
    # The name that users give a call; the framework has no agent names of its own.
    agent = text(span, semconv.AGENT_NAME, "ai.telemetry.functionId", "agent.name")
    return None if agent is None else Naming(agent, NAME)


def tool(span: Span) -> str | None:
    """Take ``ai.toolCall.name`` of an ``ai.toolCall`` span."""
    return text(span, "ai.toolCall.name") if span.attributes.get(_OPERATION) == "ai.toolCall" else None


DIALECT = Dialect(
    name=NAME,
    recognizes=recognizes,
    model_call=model_call,
    usage=usage,
    failed=failed,
    conversation=conversation,
    naming=naming,
    tool=tool,
)
