"""Vercel's AI SDK: ``ai.operationId`` and ``ai.*`` attributes, as its own telemetry writes them (``ai`` 4 to 6).

Read from ``ai`` 5.0 (Apache-2.0) and its ``@ai-sdk/otel``'s ``LegacyOpenTelemetry``. A span ``ai.generateText`` is
around the spans ``ai.generateText.doGenerate``, each of which is one request to a model. Since 7 it writes the GenAI
conventions unless the legacy form is asked for.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lightning_instrumentation import semconv

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
    """Prefer the GenAI conventions' counts, then ``ai.usage.*`` by its names of version 5 and of version 4."""
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
    """Read the JSON of ``ai.prompt.messages`` and ``ai.prompt.tools``, and the answer from ``ai.response.*``."""
    return Conversation(
        input_messages=tuple(_message(item) for item in objects(json_of(span.attributes.get("ai.prompt.messages")))),
        output_messages=_answer(span),
        tools=tuple(_tools(span)),
    )


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
    """Take ``gen_ai.agent.name``, which its metadata may give, else ``ai.telemetry.functionId``."""
    # The name that users give a call; the framework has no agent names of its own.
    agent = text(span, semconv.AGENT_NAME, "ai.telemetry.functionId")
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
