"""LangSmith's OpenTelemetry export: ``langsmith.span.kind``, with inputs and outputs as JSON in two attributes.

Read from ``langsmith`` 0.14.17 (MIT) with ``LANGSMITH_OTEL_ENABLED``. Names and counts are the GenAI conventions'; the
texts are in ``gen_ai.prompt`` and ``gen_ai.completion``: request and response of chat completions and of the Responses
API (``wrap_openai``), those of Anthropic's Messages API as ``wrap_anthropic`` rewrites them (``system`` as the first
message, an answer's tool calls as OpenAI has them), or LangChain's serialized messages, with the response's id and
finish reasons. The texts of other wrappers' calls are not read.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import input_messages
from lightning_instrumentation.wire.messages_api import Messages
from lightning_instrumentation.wire.responses import Responses
from lightning_instrumentation.wire.sampling import sampling

from lightning_trainer.ingest.dialects import genai, langgraph
from lightning_trainer.ingest.dialects.dialect import Conversation, Dialect, Message, ModelCall, Naming
from lightning_trainer.ingest.dialects.openinference import is_of_responses_api, response_id, responses_answer
from lightning_trainer.ingest.dialects.values import count, json_of, objects, text, texts
from lightning_trainer.types import AttributeValue, Span, SpanStatus

NAME = "langsmith"
INPUTS, OUTPUTS = "gen_ai.prompt", "gen_ai.completion"
_KIND = "langsmith.span.kind"
_METADATA = "langsmith.metadata."
_ROLES = {"human": "user", "HumanMessageChunk": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
_CALLS_IN_CONTENT = frozenset({"tool_use", "function_call", "tool_call"})
"""Blocks that are skipped: LangChain also has an answer's calls as ``tool_calls``, whatever provider it came from."""


def recognizes(span: Span) -> bool:
    """Look for ``langsmith.span.kind``."""
    return _KIND in span.attributes


def model_call(span: Span) -> ModelCall | None:
    """Read an ``llm`` run; take id and finish reasons from the result if the conventions' attributes lack them."""
    if span.attributes.get(_KIND) != "llm":
        return None
    outputs = _json(span, OUTPUTS)
    answers = tuple(_answers(outputs))
    if not _is_answered(span, answers):
        return None
    reasons = texts(span, semconv.FINISH_REASONS) or tuple(answer.get("finish_reason") for answer in answers)
    return ModelCall(
        span=span,
        dialect=NAME,
        response_id=text(span, semconv.RESPONSE_ID) or response_id(outputs),
        finish_reasons=reasons or (None,),
        complete=_complete(span, reasons),
    )


def request(span: Span) -> Mapping[str, AttributeValue]:
    """Read a wrapped client's request, else the temperature in LangChain's metadata."""
    told = {"temperature": span.attributes.get(f"{_METADATA}ls_temperature")}
    return {**sampling({**told, **_json(span, INPUTS)}), **span.attributes}


def _complete(span: Span, reasons: tuple[str | None, ...]) -> bool | None:
    if span.status is SpanStatus.ERROR:
        return False
    return True if any(reasons) or count(span, semconv.OUTPUT_TOKENS) is not None else None


def failed(span: Span) -> bool:
    """Whether a model call ended in an error without a response."""
    return (
        span.attributes.get(_KIND) == "llm"
        and span.status is SpanStatus.ERROR
        and not _is_answered(span, tuple(_answers(_json(span, OUTPUTS))))
    )


def _is_answered(span: Span, answers: tuple[Message, ...]) -> bool:
    # LangChain's result of a refused call has an empty message.
    return genai.is_answered(span) or any(answer.get("parts") or answer.get("finish_reason") for answer in answers)


def conversation(span: Span) -> Conversation:
    """Read request and response of a wrapped client, or LangChain's serialized messages."""
    inputs, outputs = _json(span, INPUTS), _json(span, OUTPUTS)
    read = genai.conversation(span)
    return Conversation(
        input_messages=_prompt(inputs, outputs),
        output_messages=tuple(_answers(outputs)),
        tools=read.tools or genai.tool_definitions(inputs.get("tools")),
    )


def _prompt(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[Message, ...]:
    if _is_of_messages_api(outputs) or is_of_responses_api(outputs):
        with suppress(AttributeError, KeyError, TypeError):  # a body that the API would refuse
            api = Messages() if _is_of_messages_api(outputs) else Responses()
            return objects(api.input_messages(inputs))
        return ()
    listed = inputs.get("messages")
    if isinstance(listed, list) and listed and isinstance(listed[0], list):
        listed = listed[0]  # LangChain's batch: each run is a batch of its own
    return tuple(map(_message, objects(listed)))


def _is_of_messages_api(outputs: Mapping[str, Any]) -> bool:
    return "stop_reason" in outputs and outputs.get("role") == "assistant"


def _json(span: Span, name: str) -> Mapping[str, Any]:
    found = json_of(span.attributes.get(name))
    return found if isinstance(found, dict) else {}


def _answers(outputs: Mapping[str, Any]) -> Iterator[Message]:
    """Yield the message of each choice, with its finish reason."""
    if _is_of_messages_api(outputs):
        yield _answer(outputs, outputs["stop_reason"])
    yield from responses_answer(outputs)
    for choice in objects(outputs.get("choices")):
        if isinstance(said := choice.get("message"), Mapping):
            yield _answer(said, choice.get("finish_reason"))
    generations = outputs.get("generations")
    if isinstance(generations, list) and generations and isinstance(generations[0], list):
        generations = generations[0]
    for generation in objects(generations):
        said = generation.get("message")
        said = said if isinstance(said, Mapping) else {"role": "assistant", "content": generation.get("text")}
        info = generation.get("generation_info")
        yield _answer(said, info.get("finish_reason") if isinstance(info, Mapping) else None)


def _answer(said: Mapping[str, Any], reason: Any) -> Message:
    if not reason:
        metadata = _fields(said).get("response_metadata")
        told = metadata if isinstance(metadata, Mapping) else {}
        reason = told.get("finish_reason") or told.get("stop_reason")
    return {**_message(said), "finish_reason": reason if isinstance(reason, str) and reason else None}


def _message(message: Mapping[str, Any]) -> Message:
    (read,) = input_messages([_as_openai(message)])
    return read


def _fields(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a message that LangChain may have serialized."""
    fields = message.get("kwargs")
    return fields if isinstance(fields, Mapping) and "lc" in message else message


def _as_openai(message: Mapping[str, Any]) -> dict[str, Any]:
    fields = _fields(message)
    if fields is message:
        return dict(message)
    kind, content, more = fields.get("type"), fields.get("content"), fields.get("additional_kwargs")
    if isinstance(content, list):
        content = [
            part for part in content if not (isinstance(part, Mapping) and part.get("type") in _CALLS_IN_CONTENT)
        ]
    calls = [*objects(fields.get("tool_calls")), *objects(fields.get("invalid_tool_calls"))]
    return {
        "role": fields.get("role") or (_ROLES.get(kind, kind) if isinstance(kind, str) else None),
        "content": content,
        "name": fields.get("name"),
        "tool_call_id": fields.get("tool_call_id"),
        "reasoning_content": more.get("reasoning_content") if isinstance(more, Mapping) else None,
        "tool_calls": [
            {"id": call.get("id"), "function": {"name": call.get("name"), "arguments": call.get("args")}}
            for call in calls
        ],
    }


def naming(span: Span) -> Naming | None:
    """Take LangGraph's name in the metadata, else ``gen_ai.agent.name``."""
    told = {
        name.removeprefix(_METADATA): value for name, value in span.attributes.items() if name.startswith(_METADATA)
    }
    agent = langgraph.agent_of(told)
    return genai.naming(span) if agent is None else Naming(agent, NAME)


DIALECT = Dialect(
    name=NAME,
    recognizes=recognizes,
    model_call=model_call,
    usage=genai.usage,
    failed=failed,
    conversation=conversation,
    naming=naming,
    tool=genai.tool,
    request=request,
)
