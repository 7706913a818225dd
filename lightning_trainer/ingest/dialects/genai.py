"""The official dialect: OpenTelemetry's GenAI semantic conventions, as OpenTelemetry's instrumentations write them.

Read from ``opentelemetry-instrumentation-genai-openai`` and ``-genai-langchain`` 1.3b0 and ``-openai-v2`` 2.4b0.
What was said is on the span (``gen_ai.input.messages``, ``gen_ai.output.messages``, ``gen_ai.system_instructions``)
where the user turned content on for spans. Elsewhere, and in everything that follows the conventions up to 1.36, it
travels as log records, another signal of OTLP that is not received here: such a call is known by its id and counts, not
by its words.
"""

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects.record import Conversation, Dialect, ModelCall, Naming, Usage
from lightning_trainer.ingest.dialects.values import count, json_of, objects, text, texts
from lightning_trainer.types import Span, SpanStatus

NAME = "genai"
CALL_OPERATIONS = frozenset({semconv.CHAT, "text_completion", "generate_content"})
_SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
_CUT_OFF = "error"
"""What stands for the finish reason of a stream that its reader left."""


def is_call(span: Span) -> bool:
    return span.attributes.get(semconv.OPERATION) in CALL_OPERATIONS


def is_answered(span: Span) -> bool:
    """Whether anything shows that a model answered: then tokens were sampled, whatever went wrong later."""
    return text(span, semconv.RESPONSE_ID) is not None or any(
        name in span.attributes for name in (semconv.FINISH_REASONS, semconv.OUTPUT_MESSAGES, semconv.OUTPUT_TOKENS)
    )


def model_call(span: Span) -> ModelCall | None:
    if not is_call(span) or not is_answered(span):
        return None
    reasons = texts(span, semconv.FINISH_REASONS)
    return ModelCall(
        span=span,
        dialect=NAME,
        response_id=text(span, semconv.RESPONSE_ID),
        finish_reasons=reasons or (None,) * _asked_choices(span),
        complete=_complete(span, reasons),
    )


def _complete(span: Span, reasons: tuple[str | None, ...]) -> bool | None:
    if span.status is SpanStatus.ERROR or _CUT_OFF in reasons:
        return False
    # The counts come with the last chunk; a stream may end without them (they have to be asked for).
    return True if any(reasons) or count(span, semconv.OUTPUT_TOKENS) is not None else None


def _asked_choices(span: Span) -> int:
    return min(count(span, semconv.REQUEST_CHOICE_COUNT) or 1, 128)


def usage(span: Span) -> Usage:
    return Usage(
        model=text(span, semconv.RESPONSE_MODEL, semconv.REQUEST_MODEL),
        input_tokens=count(span, semconv.INPUT_TOKENS),
        output_tokens=count(span, semconv.OUTPUT_TOKENS),
    )


def failed(span: Span) -> bool:
    return is_call(span) and not is_answered(span) and span.status is SpanStatus.ERROR


def conversation(span: Span) -> Conversation:
    system = objects(json_of(span.attributes.get(_SYSTEM_INSTRUCTIONS)))
    head = ({"role": "system", "parts": list(system)},) if system else ()
    return Conversation(
        input_messages=head + objects(json_of(span.attributes.get(semconv.INPUT_MESSAGES))),
        output_messages=objects(json_of(span.attributes.get(semconv.OUTPUT_MESSAGES))),
        tools=tuple(
            {"type": "function", **tool["function"]} if isinstance(tool.get("function"), dict) else tool
            for tool in objects(json_of(span.attributes.get(semconv.TOOL_DEFINITIONS)))
        ),
    )


def naming(span: Span) -> Naming | None:
    agent = text(span, semconv.AGENT_NAME)
    return None if agent is None else Naming(agent, text(span, semconv.AGENT_SOURCE) or NAME)


def tool(span: Span) -> str | None:
    return text(span, semconv.TOOL_NAME) if span.attributes.get(semconv.OPERATION) == semconv.EXECUTE_TOOL else None


DIALECT = Dialect(
    name=NAME,
    # Whoever writes the conventions' attributes is read as the conventions say: it is the fallback of the registry.
    recognises=lambda span: True,
    model_call=model_call,
    usage=usage,
    failed=failed,
    conversation=conversation,
    naming=naming,
    tool=tool,
)
