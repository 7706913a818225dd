"""OpenLLMetry (Traceloop): the GenAI conventions since 0.50, numbered ``gen_ai.prompt`` attributes before.

Read from ``opentelemetry-instrumentation-openai`` and ``-langchain`` 0.62.4 and 0.47.5 (Apache-2.0), and from LiteLLM's
``integrations/opentelemetry.py`` (MIT), which took over its names. The scope names of its packages begin like those of
the official ones, so it is recognized by attributes that only it writes, and by those scopes whose spans have none of
them.
"""

from collections.abc import Mapping
from typing import Any

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects import genai, langgraph
from lightning_trainer.ingest.dialects.dialect import Conversation, Dialect, Message, ModelCall, Naming, Usage
from lightning_trainer.ingest.dialects.values import (
    arguments,
    count,
    json_of,
    numbered,
    objects,
    text,
    texts,
    texts_of,
    tool_call_part,
    tool_message,
    unflattened,
)
from lightning_trainer.types import AttributeValue, Span, SpanStatus

NAME = "openllmetry"
_SIGNS = ("llm.request.type", "gen_ai.is_streaming", "gen_ai.openai.api_base")
_CALL_TYPES = ("chat", "completion", "acompletion")
"""The last is LiteLLM's: all calls of its proxy are of this type, and their ``gen_ai.operation.name`` is the same."""
_SIGN_IN_ITS_SCOPES = "gen_ai.usage.total_tokens"
"""A sign only in these scopes, because Strands writes it too."""
_ITS_SCOPES = "opentelemetry.instrumentation."
_SCOPES = frozenset({"opentelemetry.instrumentation.openai.v1", "opentelemetry.instrumentation.langchain"})
_KIND = "traceloop.span.kind"
_ENTITY = "traceloop.entity.name"
_RUN = "traceloop.association.properties."
_PENALTIES = {
    "llm.presence_penalty": semconv.REQUEST_PRESENCE_PENALTY,
    "llm.frequency_penalty": semconv.REQUEST_FREQUENCY_PENALTY,
}
_PROMPT = "gen_ai.prompt"
_COMPLETION = "gen_ai.completion"


def recognizes(span: Span) -> bool:
    """Look for its two exclusive scopes, and for attributes that only it writes."""
    attributes = span.attributes
    return (
        span.scope in _SCOPES
        or any(sign in attributes for sign in _SIGNS)
        or (_SIGN_IN_ITS_SCOPES in attributes and span.scope.startswith(_ITS_SCOPES))
        or any(name.startswith("traceloop.") for name in attributes)
    )


def model_call(span: Span) -> ModelCall | None:
    """Read either generation's attributes: the GenAI conventions', or numbered ``gen_ai.completion``."""
    if not is_call(span) or not is_answered(span):
        return None
    reasons = finish_reasons(span)
    return ModelCall(
        span=span,
        dialect=NAME,
        response_id=text(span, semconv.RESPONSE_ID),
        finish_reasons=reasons or (None,),
        complete=is_complete(span, reasons),
    )


def usage(span: Span) -> Usage:
    """Read the GenAI conventions' counts, or those from before 0.50 (``prompt_tokens``, ``completion_tokens``)."""
    return Usage(
        model=text(span, semconv.RESPONSE_MODEL, semconv.REQUEST_MODEL),
        input_tokens=count(span, semconv.INPUT_TOKENS, "gen_ai.usage.prompt_tokens"),
        output_tokens=count(span, semconv.OUTPUT_TOKENS, "gen_ai.usage.completion_tokens"),
    )


def request(span: Span) -> Mapping[str, AttributeValue]:
    """Take the penalties also from ``llm.*_penalty``, their names before 0.50."""
    older = {_PENALTIES[name]: span.attributes[name] for name in _PENALTIES.keys() & span.attributes.keys()}
    return {**older, **span.attributes} if older else span.attributes


def failed(span: Span) -> bool:
    """Whether a model call ended in an error without a response."""
    return is_call(span) and not is_answered(span) and span.status is SpanStatus.ERROR


def is_call(span: Span) -> bool:
    """Whether the span is a model call by the GenAI conventions, or by ``llm.request.type``."""
    return genai.is_call(span) or span.attributes.get("llm.request.type") in _CALL_TYPES


def is_answered(span: Span) -> bool:
    """Whether the span shows an answer by the GenAI conventions, or has a first completion's role."""
    return genai.is_answered(span) or f"{_COMPLETION}.0.role" in span.attributes


def finish_reasons(span: Span) -> tuple[str | None, ...]:
    """Return one finish reason per choice, None if it is missing; empty if the span does not list its choices."""
    reasons = texts(span, semconv.FINISH_REASONS)
    if not reasons:
        # If text is captured, the finish reasons are next to it; those of an abandoned stream are empty.
        messages = objects(json_of(span.attributes.get(semconv.OUTPUT_MESSAGES)))
        reasons = [message.get("finish_reason") for message in messages]
    if not reasons:
        reasons = [item.get("finish_reason") for item in numbered(span, _COMPLETION)]
    return texts_of(reasons)


def is_complete(span: Span, reasons: tuple[str | None, ...]) -> bool | None:
    """Whether the answer ended: None if the span does not say.

    Choices that are listed without any finish reason or token count belong to a stream that was abandoned.
    """
    if span.status is SpanStatus.ERROR:
        return False
    if any(reasons) or count(span, semconv.OUTPUT_TOKENS, "gen_ai.usage.completion_tokens") is not None:
        return True
    return False if reasons else None


def conversation(span: Span) -> Conversation:
    """Prefer the GenAI conventions' messages; older versions number ``gen_ai.prompt`` and ``gen_ai.completion``."""
    written = genai.conversation(span)
    return Conversation(
        input_messages=written.input_messages or tuple(_message(item) for item in numbered(span, _PROMPT)),
        output_messages=written.output_messages or numbered_answers(span),
        tools=written.tools
        or tuple(
            {
                "type": "function",
                "name": item.get("name"),
                "description": item.get("description"),
                "parameters": arguments(item.get("parameters") or item.get("input_schema")),
            }
            for item in numbered(span, "llm.request.functions")
        ),
    )


def numbered_answers(span: Span) -> tuple[Message, ...]:
    """Return the answers under numbered ``gen_ai.completion``."""
    return tuple(_message(item) for item in numbered(span, _COMPLETION))


def _message(item: Mapping[str, AttributeValue]) -> Message:
    role, content = item.get("role"), item.get("content")
    if role == "tool":
        return tool_message(item.get("tool_call_id"), content)
    parts = _content_parts(content)
    parts += [
        tool_call_part(call.get("id"), call.get("name"), call.get("arguments"))
        for call in unflattened(item, "tool_calls")
    ]
    message: dict[str, Any] = {"role": role, "parts": parts}
    if item.get("finish_reason"):
        message["finish_reason"] = item["finish_reason"]
    return message


def _content_parts(content: AttributeValue | None) -> list[Any]:
    # LangChain's spans write content as JSON text; an answer without text arrives as two quotes.
    if not content or content == '""':
        return []
    parts = objects(json_of(content)) if isinstance(content, str) and content.startswith("[") else ()
    if parts and all("type" in part for part in parts):
        return [{"type": "text", "content": p.get("text")} if p["type"] == "text" else dict(p) for p in parts]
    return [{"type": "text", "content": content}]


def naming(span: Span) -> Naming | None:
    """Take LangGraph's name from the association properties, then ``gen_ai.agent.name``, then an agent's entity."""
    run = {name.removeprefix(_RUN): value for name, value in span.attributes.items() if name.startswith(_RUN)}
    agent = langgraph.agent_of(run) or text(span, semconv.AGENT_NAME)
    if agent is None and span.attributes.get(_KIND) == "agent":
        agent = text(span, _ENTITY)
    return None if agent is None else Naming(agent, NAME)


def tool(span: Span) -> str | None:
    """Take the name as in the GenAI conventions, or ``traceloop.entity.name`` of a span whose kind is tool."""
    return genai.tool(span) or (text(span, _ENTITY) if span.attributes.get(_KIND) == "tool" else None)


DIALECT = Dialect(
    name=NAME,
    recognizes=recognizes,
    model_call=model_call,
    usage=usage,
    failed=failed,
    conversation=conversation,
    naming=naming,
    tool=tool,
    request=request,
)
