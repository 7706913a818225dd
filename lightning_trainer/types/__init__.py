"""The vocabulary: the data on its way from a span to a served policy version.

Torch-free and frozen: every stage reads these objects and makes new ones. Token ids are plain ints, log-probabilities
are in nats, times are Unix nanoseconds. ``None`` means "not measured" and is never a stand-in for zero.
"""

from lightning_trainer.types.recorded import (
    SHADOW_MARK,
    Attempt,
    AttemptState,
    AttributeValue,
    Call,
    Evaluation,
    Fidelity,
    Media,
    RolloutMode,
    Span,
    SpanEvent,
    SpanSink,
    SpanStatus,
)
from lightning_trainer.types.trained import (
    Credit,
    Gap,
    LedgerRow,
    Outcome,
    PolicyVersion,
    Sample,
    Segment,
    StepReport,
    TrainingBatch,
    Trajectory,
    Transition,
    VersionState,
)

__all__ = [
    "SHADOW_MARK",
    "Attempt",
    "AttemptState",
    "AttributeValue",
    "Call",
    "Credit",
    "Evaluation",
    "Fidelity",
    "Gap",
    "LedgerRow",
    "Media",
    "Outcome",
    "PolicyVersion",
    "RolloutMode",
    "Sample",
    "Segment",
    "Span",
    "SpanEvent",
    "SpanSink",
    "SpanStatus",
    "StepReport",
    "TrainingBatch",
    "Trajectory",
    "Transition",
    "VersionState",
]
