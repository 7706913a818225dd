"""AgentOps, and Agent Lightning on top of it: OpenLLMetry's numbered attributes, token ids, and rewards as spans.

Read from ``agentops`` 0.4.21 (MIT) with the attributes that Agent Lightning 0.1 to 0.3 (MIT) adds:
``prompt_token_ids``, ``response_token_ids`` and ``logprobs.content`` of the first choice (``tokens.py``), rewards as
spans ``agentlightning.annotation`` (0.3), ``agentlightning.reward`` (0.2) or an operation that returns
``{"type": "reward", "value": ...}`` (0.1). Agent Lightning's rollout and attempt are attributes of the resource,
because its exporter sends one attempt at a time.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects import openllmetry
from lightning_trainer.ingest.dialects.dialect import Conversation, ModelCall, Naming
from lightning_trainer.ingest.dialects.tokens import carries_foreign_tokens
from lightning_trainer.ingest.dialects.values import arguments, json_of, numbered, text
from lightning_trainer.types import Span, SpanStatus

NAME = "agentops"
_KIND = "agentops.span.kind"
_REQUEST = "gen_ai.request.type"
_HEADS = ("agentops.", "agentlightning.")
_OUTPUTS = ("agentops.task.output", "agentops.operation.output", "agentops.entity.output")
_REWARD_SPANS = ("agentlightning.annotation", "agentlightning.reward", "agentlightning.operation")
_MAIN_REWARD = "primary"
"""Agent Lightning's name for an unnamed reward; ours is ``reward``."""


def recognizes(span: Span) -> bool:
    """Look for ``gen_ai.request.type``, foreign token ids, and names of AgentOps or Agent Lightning."""
    return (
        _REQUEST in span.attributes
        or carries_foreign_tokens(span)
        or span.name.startswith(_HEADS)
        or any(name.startswith(_HEADS) for name in span.attributes)
    )


def model_call(span: Span) -> ModelCall | None:
    """Read OpenLLMetry's response attributes, of spans that AgentOps may mark by ``gen_ai.request.type`` alone."""
    if not _is_call(span) or not openllmetry.is_answered(span):
        return None
    reasons = openllmetry.finish_reasons(span)
    return ModelCall(
        span=span,
        dialect=NAME,
        response_id=text(span, semconv.RESPONSE_ID),
        finish_reasons=reasons or (None,),
        complete=openllmetry.is_complete(span, reasons),
    )


def failed(span: Span) -> bool:
    """Whether a call, marked in either way, ended in an error without a response."""
    return _is_call(span) and not openllmetry.is_answered(span) and span.status is SpanStatus.ERROR


def _is_call(span: Span) -> bool:
    return span.attributes.get(_REQUEST) in ("chat", "completion") or openllmetry.is_call(span)


def conversation(span: Span) -> Conversation:
    """Read messages as OpenLLMetry's, and tools also from numbered ``gen_ai.request.functions``."""
    read = openllmetry.conversation(span)
    if read.tools:
        return read
    tools = tuple(
        {"type": "function", "name": one.get("name"), "parameters": arguments(one.get("parameters"))}
        for one in numbered(span, "gen_ai.request.functions")
    )
    return replace(read, tools=tools)


def naming(span: Span) -> Naming | None:
    """Take ``agent.name``, or ``operation.name`` of a span whose kind is agent."""
    agent = text(span, "agent.name")
    if agent is None and span.attributes.get(_KIND) == "agent":
        agent = text(span, "operation.name")
    return None if agent is None else Naming(agent, NAME)


def tool(span: Span) -> str | None:
    """Take ``operation.name`` of a span whose kind is tool."""
    return text(span, "operation.name") if span.attributes.get(_KIND) == "tool" else None


def place_of(span: Span) -> tuple[str | None, str | None]:
    """Return the rollout and the attempt in which Agent Lightning made the span; used if no other source names one."""
    named = (span.resource.get(name) for name in ("agentlightning.rollout_id", "agentlightning.attempt_id"))
    rollout_id, attempt_id = (name if isinstance(name, str) and name else None for name in named)
    return rollout_id, attempt_id


def rewards(span: Span) -> Iterator[tuple[str, float]]:
    """Yield name and value of the rewards in a span; values that are not finite numbers are skipped."""
    if span.name in _REWARD_SPANS:
        given = [(item.get("name"), item.get("value")) for item in numbered(span, "agentlightning.reward")]
        given = given or [(_MAIN_REWARD, span.attributes.get("reward"))]
    else:
        outputs = (json_of(span.attributes.get(name)) for name in _OUTPUTS)
        given = [
            (_MAIN_REWARD, output.get("value"))
            for output in outputs
            if isinstance(output, dict) and output.get("type") == "reward"
        ]
    for name, value in given:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield ("reward" if name in (_MAIN_REWARD, None) else str(name)), float(value)


DIALECT = replace(
    openllmetry.DIALECT,
    name=NAME,
    recognizes=recognizes,
    model_call=model_call,
    failed=failed,
    conversation=conversation,
    naming=naming,
    tool=tool,
)
