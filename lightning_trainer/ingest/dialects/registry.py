"""Which dialect a span is written in: the first that recognizes it; the conventions' own reads everything else."""

from lightning_trainer.ingest.dialects import agentops, aisdk, genai, lightning, openinference, openllmetry
from lightning_trainer.ingest.dialects.dialect import Dialect
from lightning_trainer.types import Span

DIALECTS: tuple[Dialect, ...] = (
    agentops.DIALECT,  # before ours, which has every other span with token ids
    lightning.DIALECT,
    openinference.DIALECT,
    aisdk.DIALECT,
    openllmetry.DIALECT,
    genai.DIALECT,
)


_OWN_FORMS = (
    ("langfuse.observation.type", frozenset(("generation",))),
    ("mlflow.spanType", frozenset(('"CHAT_MODEL"', '"LLM"'))),
)
"""By what the spans of model calls are known that Langfuse and MLflow write in forms of their own."""


def is_unread_call(span: Span) -> bool:
    """Whether a span tells of a model call in a form that none of the dialects reads."""
    attributes = span.attributes
    return any(attributes.get(name) in kinds for name, kinds in _OWN_FORMS) and (
        dialect_of(span).model_call(span) is None
    )


def dialect_of(span: Span) -> Dialect:
    """Return the dialect to read a span in."""
    if span.scope.startswith(lightning.SCOPES):  # nearly all of them are, and every span is asked
        return lightning.DIALECT
    for dialect in DIALECTS:
        if dialect.recognizes(span):
            return dialect
    return genai.DIALECT
