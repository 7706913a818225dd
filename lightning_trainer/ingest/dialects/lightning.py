"""Our own dialect: the client's spans, the gateway's records, and rewards from outside.

They follow the GenAI conventions. ``lightning.stream.complete`` says whether a stream was read to its end,
``lightning.agent.source`` how an agent was recognized, and the engine's token ids are included (``tokens.py``).
"""

from dataclasses import replace
from functools import lru_cache

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects import genai
from lightning_trainer.ingest.dialects.dialect import ModelCall, Naming
from lightning_trainer.ingest.dialects.tokens import carries_tokens
from lightning_trainer.ingest.dialects.values import text, texts
from lightning_trainer.types import Span

NAME = "lightning"
SCOPES = "lightning."
_NO_REASON = (None,)


def recognizes(span: Span) -> bool:
    """Look for one of our scopes, or for token ids: a fork or a proxy may add them to spans of another scope."""
    return span.scope.startswith(SCOPES) or carries_tokens(span)


def is_ours(span: Span) -> bool:
    """Whether one of our own instrumentations wrote the span: others, such as a fork or a proxy, can carry our token
    ids."""
    return span.scope.startswith(SCOPES)


def is_gateway(span: Span) -> bool:
    """Whether the gateway wrote the span."""
    return span.scope == semconv.GATEWAY_SCOPE


def model_call(span: Span) -> ModelCall | None:
    """Read a gateway record as a call whatever it lacks, and any other span only with a sign of an answer."""
    # A gateway record is a call even if everything else is missing: it shows that the engine was called.
    by_gateway = span.scope == semconv.GATEWAY_SCOPE
    if not by_gateway and not genai.is_call(span):
        return None
    response_id = text(span, semconv.RESPONSE_ID)
    if response_id is None and not (by_gateway or carries_tokens(span) or genai.is_answered(span)):
        return None
    complete = span.attributes.get(semconv.STREAM_COMPLETE) is not False
    return ModelCall(span, NAME, response_id, texts(span, semconv.FINISH_REASONS) or _NO_REASON, complete)


def failed(span: Span) -> bool:
    """Whether a model call ended in an error without a response; unlike in ``genai``, token ids alone prove one."""
    return model_call(span) is None and genai.failed(span)


def naming(span: Span) -> Naming | None:
    """Take ``gen_ai.agent.name``; without a source, a gateway record repeats the name that its caller sent."""
    agent = text(span, semconv.AGENT_NAME)
    if agent is None:
        return None
    return _naming(agent, text(span, semconv.AGENT_SOURCE) or (None if span.scope == semconv.GATEWAY_SCOPE else NAME))


@lru_cache(maxsize=1024)
def _naming(agent: str, source: str | None) -> Naming:
    # Every span of ours has an agent name, and there are few distinct ones.
    return Naming(agent, source)


DIALECT = replace(genai.DIALECT, name=NAME, recognizes=recognizes, model_call=model_call, failed=failed, naming=naming)
