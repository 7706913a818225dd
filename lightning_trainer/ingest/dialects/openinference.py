"""OpenInference (Arize): ``openinference.span.kind`` and messages as numbered attributes.

Read from ``openinference-instrumentation-openai`` 0.1.66, ``-anthropic`` 3.1.0, and ``-langchain`` 0.1.80; names from
``openinference-semantic-conventions`` 0.1.42 (Apache-2.0). There is no attribute for the response's id: it is inside
``output.value``, the response as JSON, together with the finish reasons of its choices. LangChain's spans are not the
parents of the OpenAI client's (those start their own traces), so records are joined by that id. An answer of the
Responses API is read from that JSON too: each of its items is an output message of its own, or none.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.wire.responses import Responses
from lightning_instrumentation.wire.sampling import sampling

from lightning_trainer.ingest.dialects import genai, langgraph
from lightning_trainer.ingest.dialects.dialect import Conversation, Dialect, Message, ModelCall, Naming, Usage
from lightning_trainer.ingest.dialects.values import (
    count,
    json_of,
    numbered,
    objects,
    text,
    texts_of,
    tool_call_part,
    tool_message,
    unflattened,
)
from lightning_trainer.types import AttributeValue, Span, SpanStatus

NAME = "openinference"
KIND = "openinference.span.kind"
_OUTPUT = "llm.output_messages"
_KIND_OF_PART = "message_content.type"
_TEXT_KINDS = (None, "text", "input_text", "output_text", "reasoning")
"""Kinds whose text was said; the text of any other (a document, a provider's search) is its JSON, or a summary."""


def recognizes(span: Span) -> bool:
    """Look for ``openinference.span.kind``."""
    return KIND in span.attributes


def model_call(span: Span) -> ModelCall | None:
    """Read an ``LLM`` span, with id and finish reasons from the response's JSON in ``output.value``."""
    if span.attributes.get(KIND) != "LLM" or not _is_answered(span):
        return None
    response = _response(span)
    reasons = _finish_reasons(span, response)
    return ModelCall(
        span=span,
        dialect=NAME,
        response_id=response_id(response),
        finish_reasons=reasons or (None,),
        complete=_complete(span, response, reasons),
    )


def usage(span: Span) -> Usage:
    """Read ``llm.*model_name`` and ``llm.token_count.*``."""
    return Usage(
        model=text(span, "llm.response.model_name", "llm.model_name", "llm.request.model_name"),
        input_tokens=count(span, "llm.token_count.prompt"),
        output_tokens=count(span, "llm.token_count.completion"),
    )


def request(span: Span) -> Mapping[str, AttributeValue]:
    """Read the request's body, which lacks the prompt, in ``llm.invocation_parameters``."""
    body = json_of(span.attributes.get("llm.invocation_parameters"))
    return {**sampling(body), **span.attributes} if isinstance(body, dict) else span.attributes


def failed(span: Span) -> bool:
    """Whether a model call ended in an error without a response."""
    return span.attributes.get(KIND) == "LLM" and not _is_answered(span) and span.status is SpanStatus.ERROR


def _is_answered(span: Span) -> bool:
    return "output.value" in span.attributes or any(name.startswith(f"{_OUTPUT}.") for name in span.attributes)


def _response(span: Span) -> Mapping[str, Any]:
    if span.attributes.get("output.mime_type") == "text/plain":
        return {}  # the text of a stream, which may be JSON that the model wrote
    response = json_of(span.attributes.get("output.value"))
    return response if isinstance(response, dict) else {}


def response_id(response: Mapping[str, Any]) -> str | None:
    """Return the server's id: at the top level of the OpenAI client's response, in ``llm_output`` of LangChain's."""
    for place in (
        response if _is_response(response) else None,
        response.get("llm_output"),
        *_langchain_metadata(response),
    ):
        found = place.get("id") if isinstance(place, Mapping) else None
        if isinstance(found, str) and found:
            return found
    return None


def _is_response(found: Mapping[str, Any]) -> bool:
    """Whether it is a response of a model's server, and not JSON that the model answered."""
    return (
        "choices" in found
        or "generations" in found
        or is_of_responses_api(found)
        or found.get("type") in ("message", "completion")
    )


def is_of_responses_api(response: Mapping[str, Any]) -> bool:
    """Whether it is a response of OpenAI's Responses API."""
    return response.get("object") == "response"


def _langchain_metadata(response: Mapping[str, Any]) -> list[Any]:
    found = []
    listed = response.get("generations")
    for generations in listed if isinstance(listed, list) else ():
        for generation in objects(generations):
            message = generation.get("message")
            fields = message.get("kwargs") if isinstance(message, Mapping) else None
            found.append(fields.get("response_metadata") if isinstance(fields, Mapping) else None)
    return found


def _finish_reasons(span: Span, response: Mapping[str, Any]) -> tuple[str | None, ...]:
    reasons = [choice.get("finish_reason") for choice in objects(response.get("choices"))]
    if not reasons:
        places = [place for place in _langchain_metadata(response) if isinstance(place, Mapping)]
        reasons = [place.get("finish_reason") or place.get("stop_reason") for place in places]
    if not any(reasons):
        reasons = [text(span, "llm.finish_reason") or _of_one_answer(response), *reasons[1:]]
    return texts_of(reasons)


def _of_one_answer(response: Mapping[str, Any]) -> Any:
    """Return the finish reason of a response of Anthropic's, or of OpenAI's Responses API if it was cut off."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else response.get("stop_reason")
    return "length" if reason == "max_output_tokens" else reason


def _complete(span: Span, response: Mapping[str, Any], reasons: tuple[str | None, ...]) -> bool | None:
    if span.status is SpanStatus.ERROR:
        return False
    if any(reasons):
        return True
    # The response is present but none of its choices has a finish reason: it had not ended.
    return False if objects(response.get("choices")) else None


def conversation(span: Span) -> Conversation:
    """Read numbered ``llm.input_messages``, ``llm.output_messages``, and ``llm.tools``; an answer of the Responses API
    from ``output.value``."""
    prompt, response = list(numbered(span, "llm.input_messages")), _response(span)
    before: list[Message] = []
    if is_of_responses_api(response):
        if prompt[:1] == [{}]:
            del prompt[0]  # its input is numbered from 1, even if there are no instructions before it
        asked = json_of(span.attributes.get("llm.invocation_parameters"))
        if isinstance(asked, dict):  # it may refer to messages that only the server has
            before = Responses().input_messages({**asked, "instructions": None, "input": None})
    return Conversation(
        input_messages=(*before, *map(_message, prompt)),
        output_messages=responses_answer(response) or tuple(map(_message, numbered(span, _OUTPUT))),
        tools=genai.tool_definitions([json_of(item.get("tool.json_schema")) for item in numbered(span, "llm.tools")]),
    )


def responses_answer(response: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return the single answer in a response of the Responses API; empty if it is another API's, or cannot be read."""
    if is_of_responses_api(response):
        with suppress(AttributeError, TypeError):
            read = Responses().answer()
            read.add(response)
            return (read.choice(0).as_message(),)
    return ()


def _message(item: Mapping[str, AttributeValue]) -> Message:
    role = item.get("message.role")
    content = item.get("message.content")
    calls = list(unflattened(item, "message.tool_calls"))
    called = [call.get("tool_call.id") for call in calls]
    listed = [
        _part(part)
        for part in unflattened(item, "message.contents")
        if part.get(_KIND_OF_PART) != "tool_use" or part.get("tool_call.id") not in called
    ]
    if role == "tool":
        return tool_message(item.get("message.tool_call_id"), content or _result(listed))
    parts: list[dict[str, Any]] = [{"type": "text", "content": content}, *listed] if content else listed
    parts += [
        tool_call_part(
            call.get("tool_call.id"), call.get("tool_call.function.name"), call.get("tool_call.function.arguments")
        )
        for call in calls
    ]
    name = item.get("message.name")
    return {"role": role, "parts": parts, **({"name": name} if name else {})}


def _result(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    said = [part["content"] for part in parts if part.get("type") == "text" and isinstance(part.get("content"), str)]
    return "".join(said) if len(said) == len(parts) else parts


def _part(part: Mapping[str, AttributeValue]) -> dict[str, Any]:
    kind = part.get(_KIND_OF_PART)
    if kind in _TEXT_KINDS and "message_content.text" in part:
        return {"type": "reasoning" if kind == "reasoning" else "text", "content": part["message_content.text"]}
    if "message_content.image.image.url" in part:
        return {"type": "uri", "modality": "image", "uri": part["message_content.image.image.url"]}
    return {**part, "type": kind if isinstance(kind, str) else None}


def naming(span: Span) -> Naming | None:
    """Take LangGraph's name in ``metadata``, then ``agent.name``, then ``gen_ai.agent.name``, then the graph node of an
    ``AGENT`` span."""
    metadata = json_of(span.attributes.get("metadata"))
    agent = langgraph.agent_of(metadata) if isinstance(metadata, dict) else None
    agent = agent or text(span, "agent.name", semconv.AGENT_NAME)
    if agent is None and span.attributes.get(KIND) == "AGENT":
        agent = text(span, "graph.node.name", "graph.node.id")
    return None if agent is None else Naming(agent, NAME)


def tool(span: Span) -> str | None:
    """Take ``tool.name``, or else the span's name, of a ``TOOL`` span."""
    return (text(span, "tool.name") or span.name or None) if span.attributes.get(KIND) == "TOOL" else None


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
