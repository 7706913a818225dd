"""The official dialect: OpenTelemetry's GenAI semantic conventions, as OpenTelemetry's instrumentations write them.

Read from ``opentelemetry-instrumentation-genai-openai`` and ``-genai-langchain`` 1.3b0 and ``-openai-v2`` 2.4b0.
Messages are on the span (``gen_ai.input.messages``, ``gen_ai.output.messages``, ``gen_ai.system_instructions``) if the
user turned on content capture for spans, or in the span's events (``span_events.py``). Otherwise they travel as log
records, another OTLP signal that is not received here: such a call is counted by its id but has no text. An answer of
OpenAI's Responses API is several messages, with the finish reasons of its items, but one choice.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from lightning_instrumentation import semconv
from lightning_instrumentation.wire.sampling import sampling

from lightning_trainer.ingest.dialects import span_events
from lightning_trainer.ingest.dialects.dialect import Conversation, Dialect, Message, ModelCall, Naming, Usage
from lightning_trainer.ingest.dialects.values import count, json_of, objects, text, texts, texts_of
from lightning_trainer.types import AttributeValue, Span, SpanStatus

NAME = "genai"
CALL_OPERATIONS = frozenset({semconv.CHAT, "text_completion", "generate_content"})
_SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
_API_TYPE = "openai.api.type"
_LOGFIRE_KIND = "logfire.span_type"
_LOGFIRE_TOLERANCE_NS = 1_000_000_000
_CUT_OFF = "error"
"""The finish reason of a stream that its reader abandoned."""


def is_call(span: Span) -> bool:
    """Whether a span has the operation of a model call."""
    return span.attributes.get(semconv.OPERATION) in CALL_OPERATIONS


def is_answered(span: Span) -> bool:
    """Whether anything shows that a model answered: then tokens were sampled, whatever went wrong later."""
    return (
        text(span, semconv.RESPONSE_ID) is not None
        or any(
            name in span.attributes for name in (semconv.FINISH_REASONS, semconv.OUTPUT_MESSAGES, semconv.OUTPUT_TOKENS)
        )
        or span_events.has_answer(span)
    )


def model_call(span: Span) -> ModelCall | None:
    """Read ``gen_ai.response.*``; without finish reasons, count the choices that were requested, at most 128."""
    if not is_call(span) or not is_answered(span):
        return None
    reasons = finish_reasons(span)
    return ModelCall(
        span=span,
        dialect=NAME,
        response_id=text(span, semconv.RESPONSE_ID),
        finish_reasons=reasons or (None,) * _asked_choices(span),
        complete=_complete(span, reasons),
    )


def finish_reasons(span: Span) -> tuple[str | None, ...]:
    """Return one finish reason per choice, also from the captured answer; empty if the span has none."""
    if reasons := texts(span, semconv.FINISH_REASONS):
        return reasons[-1:] if _is_of_responses_api(span) else reasons
    found = texts_of(message.get("finish_reason") for message in _output_messages(span))
    return found if any(found) else ()


def _is_of_responses_api(span: Span) -> bool:
    if span.attributes.get(_API_TYPE) == "responses":
        return True
    return (text(span, semconv.RESPONSE_ID) or "").startswith("resp_") and _asked_choices(span) == 1


def _complete(span: Span, reasons: tuple[str | None, ...]) -> bool | None:
    if span.status is SpanStatus.ERROR or any(reason and reason.lower() == _CUT_OFF for reason in reasons):
        return False
    # The counts come with the last chunk; a stream may end without them (they have to be requested).
    return True if any(reasons) or count(span, semconv.OUTPUT_TOKENS) is not None else None


def _asked_choices(span: Span) -> int:
    return min(count(span, semconv.REQUEST_CHOICE_COUNT) or 1, 128)


def usage(span: Span) -> Usage:
    """Read ``gen_ai.response.model`` and ``gen_ai.usage.*``."""
    return Usage(
        model=text(span, semconv.RESPONSE_MODEL, semconv.REQUEST_MODEL),
        input_tokens=count(span, semconv.INPUT_TOKENS),
        output_tokens=count(span, semconv.OUTPUT_TOKENS),
    )


def failed(span: Span) -> bool:
    """Whether a model call ended in an error without a response."""
    return is_call(span) and not is_answered(span) and span.status is SpanStatus.ERROR


def conversation(span: Span) -> Conversation:
    """Read the JSON of the message attributes, with the system instructions as the first message, else the events."""
    system = objects(span_events.written(span, _SYSTEM_INSTRUCTIONS))
    head = ({"role": "system", "parts": list(system)},) if system else ()
    return Conversation(
        input_messages=head + (span_events.written_messages(span, semconv.INPUT_MESSAGES) or span_events.prompts(span)),
        output_messages=_output_messages(span),
        tools=tool_definitions(span_events.written(span, semconv.TOOL_DEFINITIONS)),
    )


def _output_messages(span: Span) -> tuple[Message, ...]:
    found = span_events.written_messages(span, semconv.OUTPUT_MESSAGES) or span_events.answers(span)
    if len(found) < 2 or not _is_of_responses_api(span):
        return found
    return ({**found[-1], "parts": [part for message in found for part in objects(message.get("parts"))]},)


_SCHEMAS = ("input_schema", "parametersJsonSchema", "inputSchema")
"""What Anthropic, Gemini, and MCP call a tool's ``parameters``."""


def tool_definitions(defined: Any) -> tuple[Mapping[str, Any], ...]:
    """Return tool definitions, each with name and ``parameters`` at the top; a request may have them inside
    ``function`` or ``custom``, or call ``parameters`` something else."""
    return tuple(_definition(tool) for tool in objects(defined))


def _definition(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    for kind in ("function", "custom"):
        if isinstance(inner := tool.get(kind), dict):
            return {"type": kind, **inner}
    if tool.get("parameters") is None and (schema := next((tool[name] for name in _SCHEMAS if name in tool), None)):
        return {**{name: value for name, value in tool.items() if name not in _SCHEMAS}, "parameters": schema}
    return tool


def request(span: Span) -> Mapping[str, AttributeValue]:
    """Take ``gen_ai.request.*``; from Logfire's spans, also what only the request's body has."""
    if _LOGFIRE_KIND not in span.attributes:
        return span.attributes
    body = json_of(span.attributes.get("request_data"))
    return {**sampling(body), **span.attributes} if isinstance(body, dict) else span.attributes


def naming(span: Span) -> Naming | None:
    """Take ``gen_ai.agent.name``, with the source that our client recorded for it, if any."""
    agent = text(span, semconv.AGENT_NAME)
    return None if agent is None else Naming(agent, text(span, semconv.AGENT_SOURCE) or NAME)


def tool(span: Span) -> str | None:
    """Take ``gen_ai.tool.name`` of an ``execute_tool`` span."""
    return text(span, semconv.TOOL_NAME) if span.attributes.get(semconv.OPERATION) == semconv.EXECUTE_TOOL else None


class StreamPart(NamedTuple):
    """One of the two spans that Logfire writes for a streamed call: the request's, and a log of the answer.

    The request's span ends before the answer comes, the log has no id of the call, and without an enclosing span they
    are in two traces. The log has the duration of the stream, which began when the request's span ended. Read from
    ``logfire`` 5.2.
    """

    place: str
    """A text that is equal for two parts that may be of one call."""
    at_ns: int
    """When the stream began, according to this part."""
    is_log: bool
    span: tuple[str, str]
    """Trace id and span id."""


def stream_part(span: Span) -> StreamPart | None:
    """Return a span as a part of a streamed call that Logfire recorded; None if it is not one."""
    kind = span.attributes.get(_LOGFIRE_KIND)
    if kind is None or not is_call(span) or (kind == "span" and is_answered(span)):
        return None
    took = span.attributes.get("duration")
    above = "" if span.parent_span_id is None else span.trace_id + span.parent_span_id
    said = span.attributes.get(semconv.INPUT_MESSAGES)
    return StreamPart(
        place=f"{above} {span.scope} {zlib.crc32(str(said).encode())}",
        at_ns=span.start_ns - int(took * 1e9) if isinstance(took, float) else span.end_ns,
        is_log=kind == "log",
        span=(span.trace_id, span.span_id),
    )


def paired(parts: Iterable[StreamPart]) -> Iterator[tuple[StreamPart, StreamPart]]:
    """Yield requests with the logs of their answers; the parts come grouped by place, sorted by time within each."""
    for _, group in groupby(parts, key=attrgetter("place")):
        of_place = list(group)
        requests = [part for part in of_place if not part.is_log]
        for log in (part for part in of_place if part.is_log):
            near = [part for part in requests if abs(part.at_ns - log.at_ns) < _LOGFIRE_TOLERANCE_NS]
            if near:
                request = min(near, key=lambda part: abs(part.at_ns - log.at_ns))
                requests.remove(request)
                yield request, log


DIALECT = Dialect(
    name=NAME,
    # The registry's fallback: spans of any tracer that writes the conventions' attributes.
    recognizes=lambda span: True,
    model_call=model_call,
    usage=usage,
    failed=failed,
    conversation=conversation,
    naming=naming,
    tool=tool,
    request=request,
)
