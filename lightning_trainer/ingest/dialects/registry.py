"""The dialect of a span: the first that recognizes it; the conventions' own reads everything else."""

from dataclasses import replace

from lightning_instrumentation import semconv

from lightning_trainer.ingest.dialects import agentops, aisdk, genai, langsmith, lightning, openinference, openllmetry
from lightning_trainer.ingest.dialects.dialect import Dialect
from lightning_trainer.types import Span

DIALECTS: tuple[Dialect, ...] = (
    agentops.DIALECT,  # before ours, which claims every other span with token ids
    lightning.DIALECT,
    langsmith.DIALECT,
    aisdk.DIALECT,  # before the dialects whose attributes Arize or Traceloop add to its spans on their way
    openinference.DIALECT,
    openllmetry.DIALECT,
    genai.DIALECT,
)

_ID_ELSEWHERE = (openinference.DIALECT, langsmith.DIALECT, aisdk.DIALECT)


_OWN_FORMS = (
    ("langfuse.observation.type", frozenset(("generation",))),
    ("mlflow.spanType", frozenset(('"CHAT_MODEL"', '"LLM"'))),
)
"""What identifies the model-call spans that Langfuse and MLflow write in their own formats."""


def is_unread_call(span: Span) -> bool:
    """Whether a span is a model call in a format that no dialect reads."""
    attributes = span.attributes
    return any(attributes.get(name) in kinds for name, kinds in _OWN_FORMS) and (
        dialect_of(span).model_call(span) is None
    )


def dialect_of(span: Span) -> Dialect:
    """Return the dialect of a span."""
    if span.scope.startswith(lightning.SCOPES):  # the usual case, and this runs for every span
        return lightning.DIALECT
    for dialect in DIALECTS:
        if dialect.recognizes(span):
            return dialect
    return genai.DIALECT


def with_response_id(span: Span) -> Span:
    """Return a span as the store can find it: with its response's id under the conventions' name.

    OpenInference, LangSmith and the AI SDK write the id elsewhere, the former two inside the response's JSON.
    """
    if semconv.RESPONSE_ID in span.attributes or (dialect := dialect_of(span)) not in _ID_ELSEWHERE:
        return span
    call = dialect.model_call(span)
    if call is None or call.response_id is None:
        return span
    return replace(span, attributes={**span.attributes, semconv.RESPONSE_ID: call.response_id})
