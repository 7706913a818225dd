"""What was said in each call, and the server's token counts: everything that ids are made from and checked against."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lightning_instrumentation import semconv

from lightning_trainer.ingest.ancestry import SpanKey, key_of, resolve_identities, unique
from lightning_trainer.ingest.calls import JoinedCall, joined_calls, span_names, tokens_of
from lightning_trainer.ingest.dialects.dialect import Conversation, Message
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.dialects.values import text
from lightning_trainer.types import Span

_MOST_ABOVE = 8
"""Limit on the spans looked at above a call to find its agent's: in Strands, a cycle's lies between."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one choice of a call, with the server's token counts."""

    prompt: tuple[Message, ...]
    answer: Message | None
    """None if no record of the call has its words."""
    tools: tuple[Mapping, ...] = ()
    is_chat: bool = True
    """False: the prompt is one text without a chat template (a text completion)."""
    model: str | None = None
    """The model's name at the server."""
    prompt_tokens: int | None = None
    """The server's count; None if it did not report one."""
    response_tokens: int | None = None
    """The count of this choice; None also if the server counted several choices together."""


def words_of(spans: Sequence[Span]) -> dict[str, Words]:
    """Return the words of every call in the spans, by call id (``Call.call_id``)."""
    known = unique(spans)
    found: dict[str, Words] = {}
    calls = tuple(joined_calls(known, resolve_identities(known)))
    names = span_names([key_of(joined.best.span) for joined in calls])
    for joined in calls:
        name = names.get(key_of(joined.best.span), joined.best.span.span_id)
        choices = tokens_of(joined.best).choices
        conversation = _conversation(joined, known)
        usages = [dialect_of(record.span).usage(record.span) for record in joined.records]
        operation = joined.best.span.attributes.get(semconv.OPERATION)
        for choice in choices:
            answers = conversation.output_messages
            found[f"{name}/{choice.index}"] = Words(
                prompt=conversation.input_messages,
                answer=answers[choice.index] if choice.index < len(answers) else None,
                tools=conversation.tools,
                is_chat=operation != semconv.TEXT_COMPLETION,
                model=next((usage.model for usage in usages if usage.model), None),
                prompt_tokens=_counted([usage.input_tokens for usage in usages]),
                response_tokens=_counted([usage.output_tokens for usage in usages]) if len(choices) == 1 else None,
            )
    return found


def _conversation(joined: JoinedCall, known: Mapping[SpanKey, Span]) -> Conversation:
    """Return the conversation of the most faithful record that has an answer's words: others may have no content."""
    for record in joined.records:
        read = dialect_of(record.span).conversation(record.span)
        if read.output_messages and read.input_messages:
            told = None if read.input_messages[0].get("role") == "system" else _system_prompt_above(record.span, known)
            system = {"role": "system", "parts": [{"type": "text", "content": told}]}
            return read if told is None else replace(read, input_messages=(system, *read.input_messages))
    return Conversation()


def _system_prompt_above(span: Span, known: Mapping[SpanKey, Span]) -> str | None:
    """Return the system prompt of a call that Strands recorded: before 1.34 it is only on the agent's span.

    Source: ``strands/telemetry/tracer.py`` of ``strands-agents`` 1.9 (Apache-2.0).
    """
    if text(span, "gen_ai.system", "gen_ai.provider.name") != "strands-agents":
        return None
    for _ in range(_MOST_ABOVE):
        above = None if span.parent_span_id is None else known.get((span.trace_id, span.parent_span_id))
        if above is None:
            return None
        if above.attributes.get(semconv.OPERATION) == semconv.INVOKE_AGENT:
            return text(above, "system_prompt")
        span = above
    return None


def _counted(counts: Sequence[int | None]) -> int | None:
    return next((count for count in counts if count is not None), None)
