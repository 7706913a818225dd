"""The span of one call: its exact tokens, the policy version that sampled them, and the caller's identity.

This span is the authority on tokens; the dialect reader finds it by its name and scope.
"""

import os
import time
from dataclasses import dataclass, replace

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import as_json, input_messages
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids
from lightning_instrumentation.wire.sampling import sampling

from lightning_trainer.gateway.caller import Caller
from lightning_trainer.gateway.engine.transcript import Transcript
from lightning_trainer.gateway.request import EngineApi, EngineRequest
from lightning_trainer.types import AttributeValue, Span, SpanStatus

SPAN_NAME = "gateway chat"
_ABANDONED_NAME = "gateway abandoned"


@dataclass(frozen=True, slots=True)
class Sampler:
    """Which weights answered, according to the engine's response headers."""

    policy: str
    version: int | None
    kept_tokens: int = 0
    """Number of leading prompt tokens kept as sampled, because tokenizing the text would have given others."""


def record_of(
    request: EngineRequest,
    caller: Caller,
    sampler: Sampler,
    transcript: Transcript,
    *,
    start_ns: int,
    interrupted: str | None = None,
) -> Span:
    """Return the span of a call that has ended; without its texts if the caller wants none recorded.

    Args:
        interrupted: why it ended before the engine was done; None if it was not interrupted.
    """
    # An engine's error message may quote the prompt.
    error = transcript.error if caller.capture_content or transcript.error is None else "the engine reported an error"
    reason = interrupted or error
    complete = transcript.complete and reason is None
    attributes = {
        **caller.attributes,
        **_request_attributes(request),
        **_response_attributes(transcript, sampler),
        **_token_attributes(transcript),
        semconv.STREAM_COMPLETE: complete,
    }
    if not caller.capture_content:
        attributes = {name: value for name, value in attributes.items() if name not in semconv.CONTENT_KEYS}
    return Span(
        trace_id=caller.trace_id,
        span_id=os.urandom(8).hex(),
        parent_span_id=caller.parent_span_id,
        name=SPAN_NAME,
        start_ns=start_ns,
        end_ns=time.time_ns(),
        attributes=attributes,
        status=SpanStatus.OK if complete else SpanStatus.ERROR,
        status_message="" if complete else reason or "the response ended before the last choice did",
        scope=semconv.GATEWAY_SCOPE,
    )


def without_content(record: Span) -> Span:
    """Return the record's identity: which call it is and whose, without tokens and messages."""
    named = (*semconv.BAGGAGE_KEYS, semconv.RESPONSE_ID)
    return replace(record, attributes={name: record.attributes[name] for name in named if name in record.attributes})


def abandonment_of(record: Span, reason: str) -> Span:
    """Return the span that takes a complete record back: the caller never received the end of that answer.

    A committed span cannot be changed, so this child span is added instead; readers then treat the call as interrupted.
    """
    now = time.time_ns()
    return Span(
        trace_id=record.trace_id,
        span_id=os.urandom(8).hex(),
        parent_span_id=record.span_id,
        name=_ABANDONED_NAME,
        start_ns=now,
        end_ns=now,
        attributes={**without_content(record).attributes, semconv.CALL_ABANDONED: True},
        status=SpanStatus.ERROR,
        status_message=reason,
        scope=semconv.GATEWAY_NOTE_SCOPE,
    )


def _request_attributes(request: EngineRequest) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        semconv.OPERATION: request.operation,
        semconv.REQUEST_MODEL: request.model,
        semconv.INPUT_MESSAGES: as_json(input_messages(_messages(request))),
        **sampling(request.body),
    }
    if request.body.get("tools"):
        attributes[semconv.TOOL_DEFINITIONS] = as_json(request.body["tools"])
    limit = request.body.get("max_completion_tokens") or request.body.get("max_tokens")
    if type(limit) is int and abs(limit) < 2**63:  # the range that a span attribute can hold
        attributes[semconv.REQUEST_MAX_TOKENS] = limit
    return attributes


def _messages(request: EngineRequest) -> object:
    if request.api is EngineApi.CHAT:
        return request.body.get("messages")
    prompt = request.body.get("prompt")
    # A prompt of token ids is recorded as token ids.
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []


def _response_attributes(transcript: Transcript, sampler: Sampler) -> dict[str, AttributeValue]:
    choices = [choice for _, choice in sorted(transcript.choices.items())]
    attributes: dict[str, AttributeValue] = {
        semconv.POLICY: sampler.policy,
        semconv.FINISH_REASONS: tuple(choice.finish_reason or "" for choice in choices),
        semconv.OUTPUT_MESSAGES: as_json([choice.as_message() for choice in choices]),
        semconv.INPUT_TOKENS: len(transcript.prompt_ids),
        semconv.OUTPUT_TOKENS: transcript.output_tokens,
    }
    if transcript.response_id is not None:
        attributes[semconv.RESPONSE_ID] = transcript.response_id
    if sampler.kept_tokens:
        attributes[semconv.PROMPT_KEPT_TOKENS] = sampler.kept_tokens
    if sampler.version is not None:
        attributes[semconv.POLICY_VERSION] = sampler.version
        attributes[semconv.RESPONSE_MODEL] = f"{sampler.policy}@v{sampler.version}"
    return attributes


def _token_attributes(transcript: Transcript) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        semconv.PROMPT_TOKEN_IDS: pack_token_ids(transcript.prompt_ids),
        semconv.CHOICES: max(transcript.choices, default=0) + 1,
    }
    if transcript.support_known:
        attributes[semconv.SUPPORT_KNOWN] = True
    for index, (token_ids, logprobs) in transcript.sampled().items():
        attributes[semconv.response_token_ids(index)] = pack_token_ids(token_ids)
        if len(logprobs) == len(token_ids):
            attributes[semconv.response_logprobs(index)] = pack_logprobs(logprobs)
    for index, drawn in transcript.sampled_from.items():
        if drawn.support is not None:
            attributes[semconv.response_support(index)] = drawn.support
        if drawn.routed_experts is not None:
            attributes[semconv.response_routed_experts(index)] = drawn.routed_experts
        if drawn.support_unknown is not None:
            attributes[semconv.response_support_unknown(index)] = drawn.support_unknown
    return attributes
